import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { createSseParser } = await load("sse.js");

function parse(pieces) {
  const events = [];
  const comments = [];
  const parser = createSseParser((event) => events.push(event), (comment) => comments.push(comment));
  for (const piece of pieces) parser.push(piece);
  return { events, comments };
}

const stream =
  '\uFEFF: {"phase":"prefill"}\r\n\r\ndata: {"a": 1}\n\nevent: note\rdata: one\rdata:two\r\rid: 3\nretry: 5\ndata\n\n' +
  "data: ä€😀\r\n\r\n:\n\ndata: [DONE]\n\ndata: never ended\n";
const expected = {
  events: [
    { event: "message", data: '{"a": 1}' },
    { event: "note", data: "one\ntwo" },
    { event: "message", data: "" },
    { event: "message", data: "ä€😀" },
    { event: "message", data: "[DONE]" },
  ],
  comments: ['{"phase":"prefill"}', ""],
};

test("a stream in one piece", () => {
  assert.deepEqual(parse([stream]), expected);
});

test("the same stream in pieces of every size", () => {
  for (let size = 1; size < stream.length; size++) {
    const pieces = [];
    for (let at = 0; at < stream.length; at += size) pieces.push(stream.slice(at, at + size));
    assert.deepEqual(parse(pieces), expected, `pieces of ${size}`);
  }
});

test("a line feed after a carriage return at the end of a piece is no second line end", () => {
  assert.deepEqual(parse(["data: a\r", "\ndata: b\r", "\n\r", "\n"]).events, [{ event: "message", data: "a\nb" }]);
});

test("unknown fields and lines without a colon are ignored", () => {
  assert.deepEqual(parse(["what\nother: x\n\n"]), { events: [], comments: [] });
});
