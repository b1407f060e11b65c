// Markdown to a tree of plain objects. Knows nothing of the page: render.js makes nodes of it.
// HTML is text here, images are links, and only http, https and mailto links are links.
//
// Blocks: {type: "paragraph" | "heading" | "code" | "list" | "quote" | "table" | "rule", ...}.
// Every block of the top level has `raw`, its source, so that a view can keep what did not change.
// Inline: {type: "text" | "code" | "strong" | "em" | "del" | "link" | "break", ...}.

const kMaxDepth = 12; // of quotes, lists and emphasis in each other; deeper ones are text
const kEscapable = "\\`*_{}[]()#+-.!|~<>";
const kMaxLinkLength = 4096; // of a link's text and address, each; longer ones are text

export function parseMarkdown(text) {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
  return parseBlocks(lines, 0);
}

// ---- blocks ----

function indentOf(line) {
  let at = 0;
  while (line[at] === " ") at++;
  return at;
}

function fenceOf(line) {
  const match = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
  if (!match || (match[1][0] === "`" && match[2].includes("`"))) return null;
  return { marks: match[1], language: match[2].trim().split(/\s/)[0] ?? "", indent: indentOf(line) };
}

function itemOf(line) {
  const match = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/.exec(line);
  if (!match || isRule(line)) return null;
  const ordered = match[2].length > 1;
  return {
    indent: match[1].length,
    ordered,
    start: ordered ? parseInt(match[2], 10) : 0,
    // A wide gap belongs to the text (code), not to the mark.
    content: match[1].length + match[2].length + (match[3].length > 4 ? 1 : Math.max(match[3].length, 1)),
    text: match[4],
  };
}

function headingOf(line) {
  const match = /^ {0,3}(#{1,6})(?: (.*))?$/.exec(line);
  if (!match) return null;
  let text = (match[2] ?? "").trimEnd();
  const closing = /(?:^| )#+$/.exec(text);
  if (closing) text = text.slice(0, closing.index).trimEnd();
  return { level: match[1].length, text };
}

function isRule(line) {
  const marks = line.replace(/ /g, "");
  return (
    indentOf(line) < 4 &&
    marks.length >= 3 &&
    "-*_".includes(marks[0]) &&
    [...marks].every((mark) => mark === marks[0])
  );
}

function isBlank(line) {
  return line.trim() === "";
}

// The cells of a row; a bar behind a backslash or in code is text.
function cellsOf(line) {
  const cells = [];
  let cell = "";
  let inCode = false;
  const trimmed = line.trim();
  for (let at = 0; at < trimmed.length; at++) {
    const letter = trimmed[at];
    if (letter === "\\" && trimmed[at + 1] === "|") {
      cell += "|";
      at++;
    } else if (letter === "|" && !inCode) {
      cells.push(cell.trim());
      cell = "";
    } else {
      if (letter === "`") inCode = !inCode;
      cell += letter;
    }
  }
  cells.push(cell.trim());
  if (trimmed.startsWith("|")) cells.shift();
  if (trimmed.endsWith("|") && cells.length > 1) cells.pop();
  return cells;
}

function alignmentsOf(line) {
  if (!line.includes("-") || !line.includes("|")) return null;
  const cells = cellsOf(line);
  if (!cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return cell.startsWith(":") ? "left" : "";
  });
}

function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const [block, end] = parseBlock(lines, at, depth);
    block.raw = lines.slice(at, end).join("\n");
    blocks.push(block);
    at = end;
  }
  return blocks;
}

// The block that begins at lines[at], and the line after it.
function parseBlock(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return parseFence(lines, at, fence);
  const heading = headingOf(line);
  if (heading) {
    return [{ type: "heading", level: heading.level, inline: parseInline(heading.text) }, at + 1];
  }
  if (isRule(line)) return [{ type: "rule" }, at + 1];
  if (depth < kMaxDepth && /^ {0,3}>/.test(line)) return parseQuote(lines, at, depth);
  if (depth < kMaxDepth && itemOf(line)) return parseList(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length) {
    const alignments = alignmentsOf(lines[at + 1]);
    if (alignments && alignments.length === cellsOf(line).length) {
      return parseTable(lines, at, alignments);
    }
  }
  return parseParagraph(lines, at, depth);
}

function parseFence(lines, at, fence) {
  const content = [];
  let end = at + 1;
  let closed = false;
  for (; end < lines.length && !closed; end++) {
    const line = lines[end];
    const marks = line.trim();
    closed =
      indentOf(line) < 4 &&
      marks.length >= fence.marks.length &&
      [...marks].every((mark) => mark === fence.marks[0]);
    if (!closed) content.push(line.slice(Math.min(indentOf(line), fence.indent)));
  }
  return [{ type: "code", language: fence.language, text: content.join("\n"), closed }, end];
}

function parseQuote(lines, at, depth) {
  const content = [];
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) {
    content.push(lines[end].replace(/^ {0,3}> ?/, ""));
    end++;
  }
  return [{ type: "quote", blocks: parseBlocks(content, depth + 1) }, end];
}

function parseList(lines, at, depth) {
  const first = itemOf(lines[at]);
  const list = { type: "list", ordered: first.ordered, start: first.start, loose: false, items: [] };
  let end = at;
  while (end < lines.length) {
    const item = itemOf(lines[end]);
    if (!item || item.ordered !== first.ordered || Math.abs(item.indent - first.indent) > 1) break;
    const content = [item.text];
    end++;
    let blanks = 0;
    while (end < lines.length) {
      const line = lines[end];
      if (isBlank(line)) {
        blanks++;
      } else if (indentOf(line) >= item.content || (itemOf(line) && indentOf(line) > item.indent + 1)) {
        for (; blanks > 0; blanks--) content.push("");
        content.push(line.slice(Math.min(indentOf(line), item.content)));
      } else if (blanks === 0 && !beginsBlock(line)) {
        content.push(line.trimStart());
      } else {
        break;
      }
      end++;
    }
    const next = end < lines.length ? itemOf(lines[end]) : null;
    const goesOn = next && next.ordered === first.ordered && Math.abs(next.indent - first.indent) <= 1;
    if (goesOn && blanks > 0) list.loose = true;
    if (!goesOn) end -= blanks;
    list.items.push(makeItem(content, depth));
    if (!goesOn) break;
  }
  return [list, end];
}

function makeItem(content, depth) {
  const task = /^\[([ xX])\] +/.exec(content[0]);
  if (task) content[0] = content[0].slice(task[0].length);
  return { checked: task ? task[1] !== " " : null, blocks: parseBlocks(content, depth + 1) };
}

function parseTable(lines, at, alignments) {
  const toCells = (line) => {
    const cells = cellsOf(line).slice(0, alignments.length);
    while (cells.length < alignments.length) cells.push("");
    return cells.map((cell) => parseInline(cell));
  };
  const rows = [];
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
    rows.push(toCells(lines[end]));
    end++;
  }
  return [{ type: "table", alignments, head: toCells(lines[at]), rows }, end];
}

function beginsBlock(line) {
  return Boolean(
    fenceOf(line) || headingOf(line) || isRule(line) || itemOf(line) || /^ {0,3}>/.test(line),
  );
}

function parseParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    if (depth < kMaxDepth && beginsBlock(lines[end])) {
      // A number in the middle of a sentence is no list.
      const item = itemOf(lines[end]);
      if (!item || !item.ordered || item.start === 1) break;
    }
    if (lines[end].includes("|") && end + 1 < lines.length && alignmentsOf(lines[end + 1])) break;
    end++;
  }
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return [{ type: "paragraph", inline: parseInline(text) }, end];
}

// ---- inline ----

export function parseInline(text) {
  return inlineOf(text, 0);
}

function inlineOf(text, depth) {
  const nodes = [];
  // Marks that nothing ends from here on: a text of many would be searched to its end for each.
  const unended = new Set();
  let plain = "";
  const flush = () => {
    if (plain !== "") nodes.push({ type: "text", text: plain });
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const found = specialAt(text, at, depth, unended);
    if (found === null) {
      plain += text[at];
      at++;
    } else if (found.text !== undefined) {
      plain += found.text;
      at = found.end;
    } else {
      // Spaces before a line end are no text.
      if (found.node.type === "break") plain = plain.trimEnd();
      flush();
      nodes.push(found.node);
      at = found.end;
    }
  }
  flush();
  return nodes;
}

// What begins at text[at]: {node, end}, {text, end} for characters that stay text, or null.
function specialAt(text, at, depth, unended) {
  switch (text[at]) {
    case "\\":
      if (text[at + 1] === "\n") return { node: { type: "break" }, end: at + 2 };
      if (at + 1 < text.length && "\\`*_#|~<>[]".includes(text[at + 1]) && isEscape(text, at, unended)) {
        return { text: text[at + 1], end: at + 2 };
      }
      return null;
    case "\n":
      return { node: { type: "break" }, end: at + 1 };
    case "`":
      return codeAt(text, at);
    case "*":
    case "_":
    case "~":
      return depth < kMaxDepth ? emphasisAt(text, at, depth, unended) : null;
    case "!":
      if (text[at + 1] !== "[") return null;
      return depth < kMaxDepth ? linkAt(text, at + 1, depth) : null;
    case "[":
      return depth < kMaxDepth ? linkAt(text, at, depth) : null;
    case "<":
      return angleLinkAt(text, at);
    case "h":
      return bareLinkAt(text, at);
    default:
      return null;
  }
}

// \[ ... \] and \( ... \) are formulas, which stay as they are.
function isEscape(text, at, unended) {
  const next = text[at + 1];
  if (next === "[") {
    if (!unended.has(next) && !text.includes("\\]", at + 2)) unended.add(next);
    return unended.has(next);
  }
  if (next === "]") return !text.slice(0, at).includes("\\[");
  return kEscapable.includes(next);
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

function codeAt(text, at) {
  const count = runLength(text, at);
  for (let end = at + count; ; ) {
    end = text.indexOf("`", end);
    if (end < 0) return { text: "`".repeat(count), end: at + count };
    const closing = runLength(text, end);
    if (closing === count) {
      let code = text.slice(at + count, end).replace(/\n/g, " ");
      if (code.length > 2 && code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") {
        code = code.slice(1, -1);
      }
      return { node: { type: "code", text: code }, end: end + count };
    }
    end += closing;
  }
}

function isWordCharacter(letter) {
  return letter !== undefined && /[\p{L}\p{N}]/u.test(letter);
}

function isSpaceAt(letter) {
  return letter === undefined || /\s/.test(letter);
}

function emphasisAt(text, at, depth, unended) {
  const mark = text[at];
  const run = runLength(text, at);
  const asText = { text: mark.repeat(run), end: at + run };
  if (isSpaceAt(text[at + run])) return asText;
  if (mark === "_" && isWordCharacter(text[at - 1])) return asText;
  if (mark === "~" && run !== 2) return asText;
  const sizes = mark === "~" ? [2] : run >= 3 ? [3, 2, 1] : run === 2 ? [2, 1] : [1];
  for (const size of sizes) {
    const kind = mark.repeat(size);
    const end = unended.has(kind) ? -1 : closingAt(text, at + size, mark, size);
    if (end < 0) {
      unended.add(kind);
      continue;
    }
    const inner = inlineOf(text.slice(at + size, end), depth + 1);
    if (mark === "~") return { node: { type: "del", inline: inner }, end: end + 2 };
    if (size === 1) return { node: { type: "em", inline: inner }, end: end + 1 };
    const strong = { type: "strong", inline: inner };
    return size === 2
      ? { node: strong, end: end + 2 }
      : { node: { type: "em", inline: [strong] }, end: end + 3 };
  }
  return asText;
}

// Where a run of marks that ends this emphasis begins, or -1. It does not look over code.
function closingAt(text, from, mark, size) {
  for (let at = from; at < text.length; ) {
    const letter = text[at];
    if (letter === "\\") {
      at += 2;
    } else if (letter === "`") {
      at = codeAt(text, at).end;
    } else if (letter === mark) {
      const run = runLength(text, at);
      const closes =
        at > from &&
        !isSpaceAt(text[at - 1]) &&
        (run === size || (run === 3 && size < 3)) &&
        (mark !== "_" || !isWordCharacter(text[at + run]));
      // Of three marks the inner ones end first.
      if (closes) return run === 3 && size < 3 ? at + 3 - size : at;
      at += run;
    } else {
      at++;
    }
  }
  return -1;
}

/** The address if it may be followed, else null. */
export function safeUrl(text) {
  const address = text.trim();
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return null;
  // Controls and spaces can hide what an address is.
  return /[\u0000-\u0020\u007f-\u009f]/.test(address) ? null : address;
}

function linkAt(text, at, depth) {
  let level = 0;
  let close = -1;
  const last = Math.min(text.length, at + kMaxLinkLength);
  for (let i = at; i < last && close < 0; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "[") level++;
    else if (text[i] === "]" && --level === 0) close = i;
  }
  if (close < 0 || text[close + 1] !== "(") return null;
  let end = -1;
  level = 0;
  const limit = Math.min(text.length, close + kMaxLinkLength);
  for (let i = close + 1; i < limit && text[i] !== "\n" && end < 0; i++) {
    if (text[i] === "(") level++;
    else if (text[i] === ")" && --level === 0) end = i;
  }
  if (end < 0) return null;
  const target = /^<?(\S*?)>?(?:\s+["'(].*)?$/.exec(text.slice(close + 2, end).trim());
  const url = target ? safeUrl(target[1]) : null;
  if (url === null) return null;
  const label = text.slice(at + 1, close);
  const inline = label === "" ? [{ type: "text", text: url }] : inlineOf(label, kMaxDepth);
  return { node: { type: "link", url, inline }, end: end + 1 };
}

function angleLinkAt(text, at) {
  const end = text.indexOf(">", at);
  if (end < 0) return null;
  const url = safeUrl(text.slice(at + 1, end));
  if (url === null) return null;
  return { node: { type: "link", url, inline: [{ type: "text", text: url }] }, end: end + 1 };
}

function bareLinkAt(text, at) {
  if (isWordCharacter(text[at - 1])) return null;
  const match = /^https?:\/\/[^\s<>"`]+/.exec(text.slice(at, at + 2048));
  if (!match) return null;
  let url = match[0].replace(/[.,;:!?'*_]+$/, "");
  if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
  if (safeUrl(url) === null || /^https?:\/\/$/.test(url)) return null;
  return { node: { type: "link", url, inline: [{ type: "text", text: url }] }, end: at + url.length };
}
