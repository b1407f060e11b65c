// Colours of code: comments, strings, numbers and the words that most languages share. It cuts the
// text into pieces {kind, text} whose texts joined are the text again; kind "" is plain.

const kKeywords = new Set(
  (
    "and as async await break case catch class const constexpr continue def default delete do elif else " +
    "enum except export extends extern false finally fn for from func function go if impl import in " +
    "include interface is lambda let loop match mod module mut namespace new nil none None not null or " +
    "package pass private protected pub public raise return select self static struct super switch " +
    "template then this throw trait true True False try type typedef typename union unsafe use using var " +
    "virtual void volatile where while with yield int float double char bool long short unsigned signed " +
    "auto string str SELECT FROM WHERE INSERT UPDATE DELETE JOIN GROUP ORDER BY CREATE TABLE VALUES " +
    "echo fi done esac local"
  ).split(" "),
);

const kHashComments = new Set(
  "python py sh bash zsh shell console ruby rb perl yaml yml toml make makefile cmake r dockerfile ini conf nix".split(" "),
);
const kDashComments = new Set("sql lua haskell hs ada".split(" "));
const kPlain = new Set(["", "text", "txt", "plain", "markdown", "md", "log", "output"]);

export function highlight(text, language) {
  const name = language.toLowerCase();
  if (kPlain.has(name) || text.length > 50_000) return [{ kind: "", text }];
  const lineComment = kHashComments.has(name) ? "#" : kDashComments.has(name) ? "--" : "//";
  const pieces = [];
  const add = (kind, piece) => {
    const last = pieces[pieces.length - 1];
    if (last && last.kind === kind) last.text += piece;
    else if (piece !== "") pieces.push({ kind, text: piece });
  };
  let at = 0;
  while (at < text.length) {
    const [kind, end] = pieceAt(text, at, lineComment);
    add(kind, text.slice(at, end));
    at = end;
  }
  return pieces;
}

function pieceAt(text, at, lineComment) {
  const letter = text[at];
  if (text.startsWith(lineComment, at) && !(lineComment === "//" && text[at - 1] === ":")) {
    const end = text.indexOf("\n", at);
    return ["comment", end < 0 ? text.length : end];
  }
  if (lineComment === "//" && text.startsWith("/*", at)) {
    const end = text.indexOf("*/", at + 2);
    return ["comment", end < 0 ? text.length : end + 2];
  }
  if (letter === '"' || letter === "'" || letter === "`") return stringAt(text, at);
  if (/[A-Za-z_$]/.test(letter)) {
    let end = at + 1;
    while (end < text.length && /[\w$]/.test(text[end])) end++;
    const word = text.slice(at, end);
    if (kKeywords.has(word)) return ["keyword", end];
    return [text[end] === "(" ? "call" : "", end];
  }
  if (/[0-9]/.test(letter)) {
    let end = at + 1;
    while (end < text.length && /[\w.]/.test(text[end])) end++;
    return ["number", end];
  }
  return ["", at + 1];
}

function stringAt(text, at) {
  const mark = text[at];
  const triple = mark.repeat(3);
  if (mark !== "`" && text.startsWith(triple, at)) {
    const end = text.indexOf(triple, at + 3);
    return ["string", end < 0 ? text.length : end + 3];
  }
  for (let end = at + 1; end < text.length; end++) {
    if (text[end] === "\\") end++;
    else if (text[end] === mark) return ["string", end + 1];
    // An apostrophe in a comment or a text is no string.
    else if (text[end] === "\n" && mark !== "`") return ["", at + 1];
  }
  return ["", at + 1];
}
