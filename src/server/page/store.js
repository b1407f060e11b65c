// Conversations in the browser (IndexedDB), settings in its local storage. Nothing leaves it.
//
// A conversation: {id, title, created, updated, messages}. A message: {role: "user" | "assistant",
// content, reasoning?, stats?, error?, stopped?}.

const kDatabase = "deltafin";
const kTable = "conversations";
const kChannel = "deltafin-conversations"; // on which pages tell each other what they changed
const kSettingsKey = "deltafin-settings";

export const kDefaultSettings = {
  system: "",
  effort: "max",
  temperature: "",
  maxTokens: "",
  apiKey: "",
  theme: "auto",
  livePanel: true,
};

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function openDatabase() {
  const request = indexedDB.open(kDatabase, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(kTable, { keyPath: "id" });
  return promised(request);
}

/** Where the browser keeps nothing (a private window), they live as long as the page. */
function createMemoryStore() {
  const all = new Map();
  return {
    persistent: false,
    list: async () => [...all.values()],
    put: async (conversation) => void all.set(conversation.id, structuredClone(conversation)),
    remove: async (id) => void all.delete(id),
    follow() {},
  };
}

/**
 * `store.follow(onChange)` calls onChange(id, conversation) when another page of this browser stored
 * one, or removed it (undefined).
 */
export async function openStore() {
  let database;
  try {
    database = await openDatabase();
  } catch {
    return createMemoryStore();
  }
  const table = (mode) => database.transaction(kTable, mode).objectStore(kTable);
  const others = new BroadcastChannel(kChannel);
  return {
    persistent: true,
    list: async () => promised(table("readonly").getAll()),
    async put(conversation) {
      await promised(table("readwrite").put(conversation));
      others.postMessage(conversation.id);
    },
    async remove(id) {
      await promised(table("readwrite").delete(id));
      others.postMessage(id);
    },
    follow(onChange) {
      others.onmessage = async ({ data: id }) => onChange(id, await promised(table("readonly").get(id)));
    },
  };
}

/**
 * Calls `work` while no other page of this browser does so for the same conversation; false if one
 * does. Where the browser has no locks (no HTTPS, another host) it is called in any case.
 */
export async function whileAlone(id, work) {
  if (!navigator.locks) {
    await work();
    return true;
  }
  return navigator.locks.request(`${kChannel}-${id}`, { ifAvailable: true }, async (lock) => {
    if (lock) await work();
    return lock !== null;
  });
}

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, messages: [] };
}

function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(4));
  return [...numbers].map((number) => number.toString(16).padStart(8, "0")).join("");
}

export function loadSettings() {
  try {
    const saved = JSON.parse(localStorage.getItem(kSettingsKey) ?? "{}");
    return { ...kDefaultSettings, ...saved };
  } catch {
    return { ...kDefaultSettings };
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(kSettingsKey, JSON.stringify(settings));
  } catch {
    // They hold until the page is closed.
  }
}

const kExportKind = "deltafin-conversations";

export function exportText(conversations) {
  return JSON.stringify({ kind: kExportKind, version: 1, conversations }, null, 1);
}

/** Conversations of an export; throws an Error that says what is wrong. Their ids are new. */
export function importText(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (data?.kind !== kExportKind || !Array.isArray(data.conversations)) {
    throw new Error("This file is no export of this page.");
  }
  return data.conversations.map((conversation, index) => {
    const messages = Array.isArray(conversation?.messages) ? conversation.messages : null;
    if (!messages) throw new Error(`Conversation ${index + 1} has no messages.`);
    return {
      ...newConversation(),
      title: String(conversation.title ?? "").slice(0, 200),
      created: Number(conversation.created) || Date.now(),
      updated: Number(conversation.updated) || Date.now(),
      messages: messages.map(cleanMessage),
    };
  });
}

function cleanMessage(message) {
  const clean = {
    role: message?.role === "assistant" ? "assistant" : "user",
    content: String(message?.content ?? ""),
  };
  if (message?.reasoning) clean.reasoning = String(message.reasoning);
  if (message?.stopped) clean.stopped = true;
  if (message?.stats && typeof message.stats === "object") {
    const { tokens, seconds, promptTokens, cachedTokens, thinkingSeconds } = message.stats;
    clean.stats = Object.fromEntries(
      Object.entries({ tokens, seconds, promptTokens, cachedTokens, thinkingSeconds })
        .filter(([, value]) => Number.isFinite(value)),
    );
  }
  return clean;
}
