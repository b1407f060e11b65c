import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { highlight } = await load("highlight.js");
const kinds = (text, language) => highlight(text, language).filter((piece) => piece.kind).map((piece) => [piece.kind, piece.text]);

test("the pieces are the text", () => {
  const text = "def f(x): # c\n  return \"a\\\"b\" + 'c' + 1.5e3 // x /* y\n'''t\n'''` `<script>\n\"open";
  for (const language of ["python", "js", "sql", "", "cpp", "nonsense"]) {
    assert.equal(highlight(text, language).map((piece) => piece.text).join(""), text);
  }
});

test("comments, strings, numbers, words and calls", () => {
  assert.deepEqual(kinds("def f(x): # c", "python"), [["keyword", "def"], ["call", "f"], ["comment", "# c"]]);
  assert.deepEqual(kinds('x = "a\\"b"; // c', "js"), [["string", '"a\\"b"'], ["comment", "// c"]]);
  assert.deepEqual(kinds("a /* b\nc */ 12", "c"), [["comment", "/* b\nc */"], ["number", "12"]]);
  assert.deepEqual(kinds("it's\n'a'", "js"), [["string", "'a'"]]);
  assert.deepEqual(kinds("SELECT 1 -- c", "sql"), [["keyword", "SELECT"], ["number", "1"], ["comment", "-- c"]]);
  assert.deepEqual(kinds("def x", "text"), []);
});
