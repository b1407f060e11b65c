import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { chatRequest } = await load("api.js");

test("an answer that never began is not sent back", () => {
  const messages = [
    { role: "user", content: "a" },
    { role: "assistant", content: "", error: "The server cannot be reached." },
    { role: "user", content: "b" },
    { role: "assistant", content: "", reasoning: "Well", stopped: true },
    { role: "user", content: "c" },
  ];
  const settings = { system: "", effort: "high", temperature: "", maxTokens: "" };
  assert.deepEqual(chatRequest("m", messages, settings).messages, [
    { role: "user", content: "a" },
    { role: "user", content: "b" },
    { role: "assistant", content: "", reasoning_content: "Well" },
    { role: "user", content: "c" },
  ]);
});
