// Markdown trees (markdown.js) to nodes.
import { element, iconButton, icon } from "./dom.js";
import { highlight } from "./highlight.js";
import { parseMarkdown } from "./markdown.js";

/**
 * Shows a growing text as Markdown. Blocks whose source did not change keep their nodes, so that a
 * selection in them survives, and long answers stay cheap.
 */
export function createMarkdownView() {
  const root = element("div", { class: "markdown" });
  let shown = []; // sources of the children
  return {
    root,
    update(text) {
      const blocks = parseMarkdown(text);
      let same = 0;
      while (same < blocks.length && same < shown.length && blocks[same].raw === shown[same]) same++;
      while (root.childNodes.length > same) root.lastChild.remove();
      for (const block of blocks.slice(same)) root.append(blockNode(block));
      shown = blocks.map((block) => block.raw);
    },
  };
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page has headings of its own above these.
      return element(`h${Math.min(block.level + 2, 6)}`, {}, ...inlineNodes(block.inline));
    case "code":
      return codeNode(block);
    case "list":
      return listNode(block);
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(blockNode));
    case "table":
      return tableNode(block);
    case "rule":
      return element("hr");
    default:
      return element("p", {}, ...inlineNodes(block.inline));
  }
}

function codeNode(block) {
  const code = element("code");
  for (const piece of highlight(block.text, block.language)) {
    code.append(piece.kind ? element("span", { class: `code-${piece.kind}` }, piece.text) : piece.text);
  }
  const label = block.language || "code";
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", {}, label), copyButton(() => block.text, "Copy code")),
    // Keyboards must be able to scroll it.
    element("pre", { tabindex: "0", "aria-label": label }, code),
  );
}

function listNode(block) {
  const list = element(block.ordered ? "ol" : "ul", {
    start: block.ordered && block.start !== 1 ? block.start : null,
  });
  for (const item of block.items) {
    const node = element("li");
    if (item.checked !== null) {
      node.className = "task";
      node.append(
        element("input", {
          type: "checkbox",
          disabled: true,
          checked: item.checked,
          "aria-label": item.checked ? "done" : "to do",
        }),
      );
    }
    item.blocks.forEach((child, index) => {
      // A short item is a line, not a paragraph.
      if (child.type === "paragraph" && !block.loose && index === 0) {
        node.append(...inlineNodes(child.inline));
      } else {
        node.append(blockNode(child));
      }
    });
    list.append(node);
  }
  return list;
}

function tableNode(block) {
  const row = (name, cells) =>
    element(
      "tr",
      {},
      ...cells.map((cell, index) =>
        element(
          name,
          { class: block.alignments[index] ? `align-${block.alignments[index]}` : null },
          ...inlineNodes(cell),
        ),
      ),
    );
  return element(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, row("th", block.head)),
      element("tbody", {}, ...block.rows.map((cells) => row("td", cells))),
    ),
  );
}

function inlineNodes(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case "code":
        return element("code", {}, node.text);
      case "strong":
      case "em":
      case "del":
        return element(node.type, {}, ...inlineNodes(node.inline));
      case "link":
        return element(
          "a",
          { href: node.url, target: "_blank", rel: "noopener noreferrer nofollow", title: node.url },
          ...inlineNodes(node.inline),
        );
      case "break":
        return element("br");
      default:
        return document.createTextNode(node.text);
    }
  });
}

/** A button that copies what `text()` returns, and says so. */
export function copyButton(text, label) {
  const button = iconButton("copy", label, async () => {
    const copied = await copyText(text());
    button.replaceChildren(icon(copied ? "check" : "close"));
    button.setAttribute("aria-label", copied ? "Copied" : "Copying failed");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS a page that is not on this machine has no clipboard; the old way still works.
    const area = element("textarea", { class: "off-screen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
