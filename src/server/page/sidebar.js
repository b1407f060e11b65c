// The list of conversations.
import { element, iconButton } from "./dom.js";
import { day } from "./format.js";

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  if (!first) return "New conversation";
  const line = first.content.replace(/\s+/g, " ").trim();
  return line.length > 60 ? `${line.slice(0, 58).trimEnd()}…` : line;
}

/** `actions`: {open(id), remove(id), save(id)}. */
export function createSidebar(root, actions) {
  return {
    show(conversations, currentId) {
      const groups = new Map();
      const sorted = [...conversations].sort((a, b) => b.updated - a.updated);
      for (const conversation of sorted) {
        const name = day(conversation.updated);
        if (!groups.has(name)) groups.set(name, []);
        groups.get(name).push(conversation);
      }
      const nodes = [];
      for (const [name, members] of groups) {
        nodes.push(
          element(
            "section",
            { class: "group", "aria-label": name },
            element("h2", {}, name),
            element("ul", {}, ...members.map((member) => row(member, member.id === currentId, actions))),
          ),
        );
      }
      root.replaceChildren(...nodes);
    },
  };
}

function row(conversation, isCurrent, actions) {
  const title = titleOf(conversation);
  return element(
    "li",
    { class: isCurrent ? "row current" : "row" },
    element(
      "button",
      {
        type: "button",
        class: "row-open",
        "aria-current": isCurrent ? "true" : null,
        onclick: () => actions.open(conversation.id),
      },
      title,
    ),
    iconButton("download", `Export “${title}”`, () => actions.save(conversation.id)),
    iconButton("trash", `Delete “${title}”`, () => actions.remove(conversation.id)),
  );
}
