// The messages of a conversation as nodes.
import { count, seconds, significant } from "./format.js";
import { element, iconButton } from "./dom.js";
import { copyButton, createMarkdownView } from "./render.js";

/**
 * `actions`: {edit(index, text), retry(index)}; both mean the message with that index.
 * @returns the list: {show(messages), append(message) -> view, clear()}
 */
export function createChatView(list, actions) {
  let views = [];
  const add = (message) => {
    const index = views.length;
    const view =
      message.role === "user" ? userView(message, index, actions) : answerView(message, index, actions);
    views.push(view);
    list.append(view.root);
    return view;
  };
  return {
    show(messages) {
      views = [];
      list.replaceChildren();
      for (const message of messages) add(message);
    },
    append: add,
  };
}

function userView(message, index, actions) {
  const text = element("div", { class: "bubble" }, message.content);
  const edit = iconButton("edit", "Edit and ask again", () => beginEdit());
  const foot = element("div", { class: "message-foot" }, copyButton(() => message.content, "Copy"), edit);
  const root = element("article", { class: "message user", "aria-label": "You" }, text, foot);

  function beginEdit() {
    const area = element("textarea", { class: "edit-area", "aria-label": "Edit the message", rows: "3" });
    area.value = message.content;
    const close = () => {
      editor.remove();
      text.hidden = foot.hidden = false;
      edit.focus();
    };
    const send = () => {
      const changed = area.value.trim();
      if (changed === "") return;
      close();
      actions.edit(index, changed);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    const editor = element(
      "div",
      { class: "editor" },
      area,
      element(
        "div",
        { class: "editor-foot" },
        element("button", { type: "button", class: "wide-button", onclick: close }, "Cancel"),
        element("button", { type: "button", class: "wide-button primary", onclick: send }, "Send"),
      ),
    );
    text.hidden = foot.hidden = true;
    root.append(editor);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
  return { root };
}

function answerView(message, index, actions) {
  const thinking = thinkingView();
  const progress = progressView();
  const markdown = createMarkdownView();
  const note = element("p", { class: "message-note", hidden: true });
  const stats = element("span", { class: "stats" });
  const foot = element(
    "div",
    { class: "message-foot" },
    copyButton(() => message.content, "Copy the answer"),
    iconButton("retry", "Try again", () => actions.retry(index)),
    stats,
  );
  const root = element(
    "article",
    { class: "message answer", "aria-label": "Answer" },
    progress.root,
    thinking.root,
    markdown.root,
    note,
    foot,
  );

  let frame = 0;
  const draw = () => {
    frame = 0;
    markdown.update(message.content);
    thinking.update(message, root.classList.contains("growing"));
  };
  const view = {
    root,
    /** The message has grown. Draws once a frame. */
    changed() {
      if (frame === 0) frame = requestAnimationFrame(draw);
    },
    progress: progress.update,
    setLive(live) {
      root.classList.toggle("growing", live);
      root.setAttribute("aria-busy", String(live));
      if (!live) {
        progress.update(null);
        if (frame !== 0) cancelAnimationFrame(frame);
        draw();
      }
      foot.hidden = live;
      stats.textContent = statsText(message.stats);
      note.textContent = message.error ?? (message.stopped ? "Stopped here." : "");
      note.hidden = note.textContent === "";
      note.classList.toggle("error", Boolean(message.error));
    },
  };
  view.setLive(false);
  return view;
}

function thinkingView() {
  const label = element("span", { class: "thinking-label" });
  const words = element("bdi", { dir: "ltr" });
  // What does not fit is cut off at its begin (chat.css).
  const preview = element("span", { class: "thinking-preview", "aria-hidden": "true" }, words);
  const markdown = createMarkdownView();
  const root = element(
    "details",
    { class: "thinking", hidden: true },
    element("summary", {}, label, preview),
    markdown.root,
  );
  let stale = "";
  const fill = () => {
    if (root.open) markdown.update(stale);
  };
  root.addEventListener("toggle", fill);
  return {
    root,
    update(message, live) {
      const text = message.reasoning ?? "";
      root.hidden = text.trim() === "";
      if (root.hidden) return;
      const thinks = live && message.content === "";
      root.classList.toggle("active", thinks);
      const spent = message.stats?.thinkingSeconds;
      label.textContent = thinks ? "Thinking" : spent ? `Thought for ${seconds(spent)}` : "Thought";
      // The words that came last, as they come.
      words.textContent = thinks ? text.slice(-160).replace(/\s+/g, " ").trim() : "";
      stale = text;
      fill();
    },
  };
}

function progressView() {
  const label = element("span");
  const bar = element("div", { class: "progress-fill" });
  const track = element(
    "div",
    { class: "progress-track", role: "progressbar", "aria-label": "Reading the prompt" },
    bar,
  );
  const root = element("div", { class: "progress", hidden: true }, label, track);
  return {
    root,
    update(progress) {
      root.hidden = progress === null;
      if (progress === null) return;
      const [text, part] = progressText(progress);
      label.textContent = text;
      track.hidden = part === null;
      if (part !== null) {
        bar.style.width = `${(part * 100).toFixed(1)}%`;
        track.setAttribute("aria-valuenow", String(Math.round(part * 100)));
      }
    },
  };
}

/** What to say of a progress comment of the server, and how far it is (null: not known). */
export function progressText(progress) {
  if (progress.phase === "sent") return ["Sending", null];
  if (progress.phase === "queued") {
    const before = progress.jobs_before;
    return [before > 0 ? `Waiting: ${count(before, "request")} before yours` : "Waiting", null];
  }
  const layer =
    progress.num_layers > 0 ? `layer ${progress.layer + 1} of ${progress.num_layers}` : "";
  if (progress.phase === "decode") return [`Computing the next token: ${layer}`, null];
  const total = progress.prompt_tokens;
  const fresh = total - progress.cached_tokens;
  // Within a pass the layers say how far it is.
  const inPass = progress.num_layers > 0 ? progress.layer / progress.num_layers : 0;
  const done = progress.done_tokens - progress.cached_tokens;
  const part = fresh > 0 ? Math.min(1, Math.max(done / fresh, inPass / Math.max(1, fresh / 512))) : 1;
  let text = `Reading ${count(fresh, "token")}`;
  if (progress.cached_tokens > 0) text += ` (${progress.cached_tokens.toLocaleString("en")} known)`;
  if (layer) text += `, ${layer}`;
  if (progress.seconds_left > 0) text += `, about ${seconds(progress.seconds_left)} left`;
  return [text, part];
}

export function statsText(stats) {
  if (!stats) return "";
  const parts = [];
  if (stats.tokens > 0) {
    parts.push(count(stats.tokens, "token"));
    if (stats.seconds > 0) parts.push(`${significant(stats.tokens / stats.seconds)} per second`);
  }
  if (stats.promptTokens > 0) {
    const cached = stats.cachedTokens > 0 ? `, ${stats.cachedTokens.toLocaleString("en")} known` : "";
    parts.push(`prompt ${stats.promptTokens.toLocaleString("en")}${cached}`);
  }
  return parts.join(" · ");
}
