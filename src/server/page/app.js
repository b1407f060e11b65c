// The page: conversations, the composer, and the panel beside them.
import { fetchModels, followLive } from "./api.js";
import { fillAnswer } from "./answer.js";
import { createChatView } from "./chat_view.js";
import { byId, icon, iconButton } from "./dom.js";
import { createLivePanel } from "./live.js";
import { askToDelete, createSettingsDialog, download } from "./dialogs.js";
import { createSidebar, titleOf } from "./sidebar.js";
import {
  exportText, importText, loadSettings, newConversation, openStore, saveSettings, whileAlone,
} from "./store.js";
import { showWelcome } from "./welcome.js";

const kSaveMilliseconds = 1000; // between two saves while an answer grows
const kNearEnd = 80; // pixels: who is so near to the end follows it

const settings = loadSettings();
const store = await openStore();
const conversations = new Map((await store.list()).map((each) => [each.id, each]));
let current = newConversation();
let model = "";
let hello = null;
let running = null; // {controller, conversation, message, view} of the answer that is being made
let stopFollowing = () => {};

const prompt = byId("prompt");
const main = byId("main");
const chat = createChatView(byId("messages"), { edit, retry });
const sidebar = createSidebar(byId("conversations"), { open, remove, save: exportOne });
const live = createLivePanel(byId("live"), () => setLivePanel(false));

// ---- conversations ----

function save(conversation) {
  conversation.updated = Date.now();
  conversations.set(conversation.id, conversation);
  store.put(conversation).catch((error) => showNotice(`This browser does not keep it: ${error.message}`));
}

function showSidebar() {
  sidebar.show(conversations.values(), current.id);
  const title = titleOf(current);
  byId("title").textContent = title;
  document.title = current.messages.length > 0 ? `${title} – Deltafin` : "Deltafin";
}

function showCurrent() {
  chat.show(current.messages);
  const isEmpty = current.messages.length === 0;
  byId("welcome").hidden = !isEmpty;
  if (isEmpty) showWelcome(byId("welcome"), hello, model, store.persistent, ask);
  showSidebar();
  if (running?.view && running.conversation === current) attachRunning();
  main.scrollTop = main.scrollHeight;
}

function attachRunning() {
  // The nodes are made anew, and the answer goes on in them.
  chat.show(current.messages.slice(0, -1));
  running.view = chat.append(running.message);
  running.view.setLive(true);
  running.view.changed();
}

function open(id) {
  current = conversations.get(id) ?? newConversation();
  location.replace(`#${current.id}`);
  showCurrent();
  closeSidebar();
  prompt.focus();
}

function startNew() {
  current = newConversation();
  history.replaceState(null, "", location.pathname);
  showCurrent();
  closeSidebar();
  prompt.focus();
}

async function remove(id) {
  const conversation = conversations.get(id);
  if (!conversation || !(await askToDelete(`Delete “${titleOf(conversation)}”?`))) return;
  if (running?.conversation === conversation) running.controller.abort();
  conversations.delete(id);
  await store.remove(id);
  if (current.id === id) startNew();
  else showSidebar();
}

function exportOne(id) {
  const conversation = conversations.get(id);
  if (conversation) download(`${titleOf(conversation).slice(0, 40)}.json`, exportText([conversation]));
}

// What this page computes itself it knows better, unless it was removed.
function takeFromAnotherPage(id, conversation) {
  if (running?.conversation.id === id) {
    if (conversation) return;
    running.controller.abort();
  }
  if (conversation) conversations.set(id, conversation);
  else conversations.delete(id);
  if (current.id !== id) {
    showSidebar();
  } else if (conversation) {
    current = conversation;
    const top = isAtEnd() ? null : main.scrollTop;
    showCurrent();
    if (top !== null) main.scrollTop = top;
  } else {
    startNew();
  }
}

async function importFile(file) {
  try {
    const imported = importText(await file.text());
    for (const conversation of imported) {
      conversations.set(conversation.id, conversation);
      await store.put(conversation);
    }
    if (imported.length > 0) open(imported[0].id);
  } catch (error) {
    showNotice(error.message);
  }
}

// ---- asking ----

function ask(text) {
  if (text.trim() !== "") send([...current.messages, { role: "user", content: text }]);
}

function edit(index, text) {
  send([...current.messages.slice(0, index), { role: "user", content: text }]);
}

function retry(index) {
  send(current.messages.slice(0, index));
}

// Makes the messages the current conversation's, and lets the model answer the last one.
async function send(messages) {
  if (running) return;
  hideNotice();
  const conversation = current;
  const message = { role: "assistant", content: "" };
  const job = { controller: new AbortController(), conversation, message };
  running = job;
  setRunning(true);
  if (await whileAlone(conversation.id, () => answer(job, messages))) return;
  running = null;
  setRunning(false);
  showNotice("Another tab lets the model answer in this conversation. Ask again when it has ended.");
  if (prompt.value === "") prompt.value = messages.at(-1).content;
  growPrompt();
}

async function answer(job, messages) {
  const { conversation, message } = job;
  current = conversation;
  byId("welcome").hidden = true;
  // What stays is not drawn anew: somebody may have opened its thinking.
  if (messages.length > conversation.messages.length) chat.append(messages.at(-1));
  else chat.show(messages);
  conversation.messages = [...messages, message];
  job.view = chat.append(message);
  job.view.setLive(true);
  save(conversation);
  location.replace(`#${conversation.id}`);
  showSidebar();
  followEnd(true);
  let savedAt = performance.now();
  // Until it is whole it counts as stopped: that is what a page that is closed leaves behind.
  message.stopped = true;
  await fillAnswer(message, messages, model, settings, job.controller.signal, {
    changed() {
      job.view.changed();
      followEnd(false);
      if (performance.now() - savedAt > kSaveMilliseconds) {
        savedAt = performance.now();
        save(conversation);
      }
    },
    progress: (progress) => job.view.progress(progress),
    phase: announcePhase,
  });
  if (!job.controller.signal.aborted) delete message.stopped;
  running = null;
  setRunning(false);
  job.view.setLive(false);
  if (conversations.has(conversation.id)) save(conversation);
  showSidebar();
  followEnd(false);
  announceEnd(message);
}

function stop() {
  running?.controller.abort();
}

function setRunning(isRunning) {
  const send = byId("send");
  const label = isRunning ? "Stop" : "Send";
  send.replaceChildren(icon(isRunning ? "stop" : "send"));
  send.setAttribute("aria-label", label);
  send.title = label;
  send.classList.toggle("stop", isRunning);
  document.body.classList.toggle("running", isRunning);
  updateSend();
}

function updateSend() {
  byId("send").disabled = !running && prompt.value.trim() === "";
}

// ---- what the page says ----

function announce(text) {
  byId("status").textContent = text;
}

function announcePhase(phase) {
  announce({ waiting: "Sent", thinking: "The model is thinking", answering: "The answer begins" }[phase]);
}

function announceEnd(message) {
  if (message.error) announce(message.error);
  else if (message.stopped) announce("Stopped");
  else announce(`Answer: ${message.content.slice(0, 500)}`);
}

function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = false;
}

function hideNotice() {
  byId("notice").hidden = true;
}

function isAtEnd() {
  return main.scrollHeight - main.scrollTop - main.clientHeight < kNearEnd;
}

function followEnd(always) {
  if (always || isAtEnd()) {
    requestAnimationFrame(() => {
      main.scrollTop = main.scrollHeight;
    });
  }
}

// ---- the frame around ----

function setLivePanel(isShown) {
  settings.livePanel = isShown;
  saveSettings(settings);
  showLivePanel(isShown);
}

function showLivePanel(isShown) {
  document.body.classList.toggle("with-live", isShown);
  live.setShown(isShown);
  liveButton.setAttribute("aria-expanded", String(isShown));
}

function openSidebar() {
  document.body.classList.add("with-sidebar");
  byId("scrim").hidden = false;
  menuButton.setAttribute("aria-expanded", "true");
  byId("new-chat").focus();
}

function closeSidebar() {
  document.body.classList.remove("with-sidebar");
  byId("scrim").hidden = true;
  menuButton.setAttribute("aria-expanded", "false");
}

function applySettings() {
  document.documentElement.dataset.theme = settings.theme;
  byId("effort").value = settings.effort;
  live.redraw();
}

function growPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  updateSend();
}

function connect() {
  stopFollowing();
  stopFollowing = followLive(settings.apiKey, {
    event(event) {
      if (event.type === "hello") {
        hello = event;
        model = event.model;
        showModel();
      }
      live.event(event);
    },
    lost: (error) => live.lost(error),
  });
  fetchModels(settings.apiKey)
    .then((models) => {
      hideNotice();
      if (models.length === 0) return;
      model = models[0].id;
      showModel();
    })
    .catch((error) => {
      if (error.status === 401) showNotice(error.message);
    });
}

function showModel() {
  byId("model").textContent = model;
  if (current.messages.length === 0) {
    showWelcome(byId("welcome"), hello, model, store.persistent, ask);
  }
}

const menuButton = iconButton("menu", "Conversations", openSidebar, {
  class: "icon-button only-narrow",
  "aria-expanded": "false",
  "aria-controls": "sidebar",
});
const liveButton = iconButton(
  "pulse",
  "What the machine does",
  () => setLivePanel(!document.body.classList.contains("with-live")),
  { "aria-controls": "live", "aria-expanded": "false" },
);
const openSettings = createSettingsDialog(settings, () => {
  saveSettings(settings);
  applySettings();
  connect();
});
document.querySelector(".top-left").append(menuButton);
document.querySelector(".top-right").append(
  iconButton("plus", "New conversation", startNew, { class: "icon-button only-narrow" }),
  liveButton,
  iconButton("settings", "Settings", openSettings),
);

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    stop();
    return;
  }
  const text = prompt.value.trim();
  if (text === "") return;
  prompt.value = "";
  growPrompt();
  ask(text);
});
prompt.addEventListener("input", growPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) byId("composer").requestSubmit();
});
byId("effort").addEventListener("change", (event) => {
  settings.effort = event.target.value;
  saveSettings(settings);
});
byId("new-chat").prepend(icon("plus"));
byId("new-chat").addEventListener("click", startNew);
byId("scrim").addEventListener("click", closeSidebar);
byId("export-all").addEventListener("click", () =>
  download("deltafin-conversations.json", exportText([...conversations.values()])),
);
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", (event) => {
  if (event.target.files.length > 0) importFile(event.target.files[0]);
  event.target.value = "";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.querySelector("dialog[open]") === null) {
    if (document.body.classList.contains("with-sidebar")) closeSidebar();
    else if (running) stop();
  }
  const inField = event.target.closest?.("input, textarea, select");
  if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    prompt.focus();
  }
});
main.addEventListener("scroll", () => {
  byId("to-end").hidden = main.scrollHeight - main.scrollTop - main.clientHeight < 2 * kNearEnd;
});
byId("to-end").addEventListener("click", () => followEnd(true));
addEventListener("pagehide", () => {
  if (running) store.put(running.conversation);
});

applySettings();
setRunning(false);
showLivePanel(settings.livePanel && matchMedia("(min-width: 70rem)").matches);
current = conversations.get(location.hash.slice(1)) ?? current;
showCurrent();
store.follow(takeFromAnotherPage);
connect();
if (matchMedia("(pointer: fine)").matches) prompt.focus();
