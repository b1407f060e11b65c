import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { parseMarkdown, safeUrl } = await load("markdown.js");

// A tree in short: blocks as [type, ...], inline as text with <marks>.
function inline(nodes) {
  return nodes
    .map((node) => {
      switch (node.type) {
        case "text":
          return node.text;
        case "code":
          return `<code ${node.text}>`;
        case "break":
          return "<br>";
        case "link":
          return `<link ${node.url}: ${inline(node.inline)}>`;
        default:
          return `<${node.type} ${inline(node.inline)}>`;
      }
    })
    .join("");
}

function brief(block) {
  switch (block.type) {
    case "paragraph":
      return inline(block.inline);
    case "heading":
      return [`h${block.level}`, inline(block.inline)];
    case "code":
      return ["code", block.language, block.text, block.closed];
    case "list":
      return [
        block.ordered ? `ol${block.start}` : "ul",
        ...block.items.map((item) => [...(item.checked === null ? [] : [item.checked]), ...item.blocks.map(brief)]),
      ];
    case "quote":
      return ["quote", ...block.blocks.map(brief)];
    case "table":
      return ["table", block.alignments, ...[block.head, ...block.rows].map((row) => row.map(inline))];
    default:
      return [block.type];
  }
}

function shows(text, ...blocks) {
  assert.deepEqual(parseMarkdown(text).map(brief), blocks, JSON.stringify(text));
}

test("paragraphs and line ends", () => {
  shows("");
  shows("\n\n");
  shows("one\ntwo\n\nthree", "one<br>two", "three");
  shows("a\r\nb", "a<br>b");
  shows("a  \nb\\\nc", "a<br>b<br>c");
});

test("emphasis", () => {
  shows("**b** *i* ***bi*** ~~d~~ __b__ _i_", "<strong b> <em i> <em <strong bi>> <del d> <strong b> <em i>");
  shows("**a *b* c**", "<strong a <em b> c>");
  shows("*a **b** c*", "<em a <strong b> c>");
  shows("snake_case_name and 2*3*4", "snake_case_name and 2<em 3>4");
  shows("a * b * c, ** d **", "a * b * c, ** d **");
  shows("**open and `code**`", "**open and <code code**>");
  shows("*open", "*open");
  shows("\\*no\\* \\# \\`", "*no* # `");
  shows("~one~", "~one~");
});

test("code", () => {
  shows("`a` ``b`c`` ` d ` `` ` ``", "<code a> <code b`c> <code d> <code `>");
  shows("`open", "`open");
  shows("```js\nlet a = `1`;\n\n  x\n```\nafter", ["code", "js", "let a = `1`;\n\n  x", true], "after");
  shows("```\nopen", ["code", "", "open", false]);
  shows("~~~\n```\n~~~", ["code", "", "```", true]);
  shows("````\n```\n````", ["code", "", "```", true]);
  shows("- a\n  ```\n  b\n  ```", ["ul", ["a", ["code", "", "b", true]]]);
});

test("headings and rules", () => {
  shows("# a\n###### b ##\n####### c\n#d", ["h1", "a"], ["h6", "b"], "####### c<br>#d");
  shows("text\n## h\nmore", "text", ["h2", "h"], "more");
  shows("---\n* * *\n__\n", ["rule"], ["rule"], "__");
});

test("lists", () => {
  shows("- a\n- b\n  - c\n  - d\n- e", ["ul", ["a"], ["b", ["ul", ["c"], ["d"]]], ["e"]]);
  shows("1. a\n2. b", ["ol1", ["a"], ["b"]]);
  shows("3) a", ["ol3", ["a"]]);
  shows("- [ ] a\n- [x] b", ["ul", [false, "a"], [true, "b"]]);
  shows("1. a\n   - b\n\n   more\n2. c", ["ol1", ["a", ["ul", ["b"]], "more"], ["c"]]);
  shows("text\n- a", "text", ["ul", ["a"]]);
  shows("In\n1984. It", "In<br>1984. It");
  shows("- a\nlazy\n\nafter", ["ul", ["a<br>lazy"]], "after");
  shows("-", ["ul", []]);
});

test("quotes", () => {
  shows("> a\n> > b\n\nc", ["quote", "a", ["quote", "b"]], "c");
});

test("tables", () => {
  shows("| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 |", ["table", ["center", "right"], ["a", "b"], ["1", "<code x|y>"], ["2", ""]]);
  shows("a | b\n--|--\n1 \\| 2 | 3", ["table", ["", ""], ["a", "b"], ["1 | 2", "3"]]);
  shows("a | b\nno table", "a | b<br>no table");
});

test("links lead to the web and to mail only", () => {
  shows("[a](https://x.org/b_c?d=(e))", "<link https://x.org/b_c?d=(e): a>");
  shows('[**a**](http://x.org "title")', "<link http://x.org: **a**>");
  shows("<https://x.org> https://y.org/a_b. (https://z.org)",
    "<link https://x.org: https://x.org> <link https://y.org/a_b: https://y.org/a_b>. (<link https://z.org: https://z.org>)");
  shows("![alt](https://x.org/i.png)", "<link https://x.org/i.png: alt>");
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "//x.org", "/x", "java\tscript:x", "file:///etc/passwd", "blob:x", " javascript:x"]) {
    assert.equal(safeUrl(bad), null, bad);
    assert.ok(!JSON.stringify(parseMarkdown(`[a](${bad}) <${bad}> ${bad}`)).includes('"link"'), bad);
  }
  assert.equal(safeUrl("https://x.org/\u0001"), null);
  assert.equal(safeUrl("mailto:a@b.org"), "mailto:a@b.org");
});

test("HTML is text", () => {
  const html = "<script>alert(1)</script><img src=x onerror=alert(1)>";
  shows(html, html);
});

test("formulas keep their backslashes", () => {
  shows("\\(a_1 + b_1\\) and \\[x\\]", "\\(a_1 + b_1\\) and \\[x\\]");
});

test("blocks know their source, and together they are the text", () => {
  const text = "# a\n\nb\nc\n\n- d\n\n```\ne\n```\n> f";
  const blocks = parseMarkdown(text);
  assert.deepEqual(blocks.map((block) => block.raw), ["# a", "b\nc", "- d", "```\ne\n```", "> f"]);
});

// Text that makes careless readers try everything: this would not end.
test("what is hard to read has an end", { timeout: 60_000 }, () => {
  const hard = [
    "*".repeat(5000), "**a ".repeat(2000), "[".repeat(5000), "`".repeat(5000), "> ".repeat(3000) + "x", "- ".repeat(3000) + "x",
    "[a](".repeat(2000), "_a ".repeat(3000), "\\[".repeat(3000), "|".repeat(5000) + "\n" + "|-".repeat(2500), "![".repeat(3000), "<https://".repeat(1000),
    "`a``b".repeat(2000), "* a *b ".repeat(1500), "h".repeat(50000),
  ];
  for (const text of hard) parseMarkdown(text);
});

// An answer is read anew while it grows. These take a second or two, and minutes where every mark
// is searched for to the end of the text.
test("long answers that repeat themselves are read quickly", () => {
  const began = performance.now();
  for (const word of ["**Note: ", "*a ", "_a ", "~~a ", "[", "![a ", "[a](b ", "\\["]) {
    parseMarkdown(word.repeat(Math.ceil(160_000 / word.length)));
  }
  assert.ok(performance.now() - began < 30_000);
});

test("any text becomes a tree, and every prefix of it too", () => {
  const words = ["*", "**", "_", "`", "```", "\n", "\n\n", "[", "](", ")", "> ", "- ", "1. ", "# ", "|", "---", "a", "b ", "\\", "<", "https://x.org", "~~", "  ", "!", "😀"];
  let seed = 7;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let round = 0; round < 500; round++) {
    let text = "";
    for (let i = 0; i < 30; i++) {
      text += words[Math.floor(random() * words.length)];
      const lines = text.split("\n").filter((line) => line.trim() !== "").length;
      const shown = parseMarkdown(text).reduce((sum, block) => sum + block.raw.split("\n").filter((line) => line.trim() !== "").length, 0);
      assert.equal(shown, lines, JSON.stringify(text));
    }
  }
});
