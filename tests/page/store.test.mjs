import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { exportText, importText, newConversation } = await load("store.js");

test("what is exported comes back, under a new id", () => {
  const conversation = {
    ...newConversation(),
    title: "T",
    messages: [
      { role: "user", content: "<b>q</b>" },
      { role: "assistant", content: "a", reasoning: "r", stopped: true, stats: { tokens: 3, seconds: 1.5 } },
    ],
  };
  const [again] = importText(exportText([conversation]));
  assert.notEqual(again.id, conversation.id);
  assert.deepEqual({ ...again, id: conversation.id }, conversation);
});

test("other files are refused, and strange values become text", () => {
  assert.throws(() => importText("no"), /not JSON/);
  assert.throws(() => importText("{}"), /no export/);
  assert.throws(() => importText(JSON.stringify({ kind: "deltafin-conversations", conversations: [{}] })), /no messages/);
  const [strange] = importText(JSON.stringify({
    kind: "deltafin-conversations",
    conversations: [{ messages: [{ role: "root", content: { a: 1 }, stats: { tokens: "x" }, __proto__: null }] }],
  }));
  assert.deepEqual(strange.messages, [{ role: "user", content: "[object Object]", stats: {} }]);
});
