// Server-sent events from pieces of text, as they arrive. Comments count here: the server reports
// its progress in them.

/**
 * @param {(event: {event: string, data: string}) => void} onEvent
 * @param {(comment: string) => void} [onComment]
 * @returns {{push: (text: string) => void}}
 */
export function createSseParser(onEvent, onComment = () => {}) {
  let rest = "";
  let data = [];
  let name = "";
  let isFirst = true;

  function takeLine(line) {
    if (line === "") {
      if (data.length > 0) onEvent({ event: name || "message", data: data.join("\n") });
      data = [];
      name = "";
      return;
    }
    if (line.startsWith(":")) {
      onComment(line.slice(1).trimStart());
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") data.push(value);
    if (field === "event") name = value;
  }

  return {
    push(text) {
      if (isFirst && text !== "") {
        isFirst = false;
        if (text.startsWith("\uFEFF")) text = text.slice(1);
      }
      rest += text;
      let begin = 0;
      for (let at = 0; at < rest.length; at++) {
        const letter = rest[at];
        if (letter !== "\n" && letter !== "\r") continue;
        // A line feed may still follow this carriage return.
        if (letter === "\r" && at + 1 === rest.length) break;
        takeLine(rest.slice(begin, at));
        if (letter === "\r" && rest[at + 1] === "\n") at++;
        begin = at + 1;
      }
      rest = rest.slice(begin);
    },
  };
}
