// The curl commands of docs/server.md, as they stand there, and what curl alone shows.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { startServer } from "./server.mjs";

const run = promisify(execFile);
const kDocument = new URL("../../docs/server.md", import.meta.url);
const kChat = "v1/chat/completions";
const kQuestion = JSON.stringify({ messages: [{ role: "user", content: "What is the capital of France?" }] });

let server;
before(async () => {
  server = await startServer();
});
after(() => server.stop());

const curl = async (path, ...flags) => (await run("curl", ["-sS", "-m", "120", server.url + path, ...flags])).stdout;
const json = ["-H", "Content-Type: application/json"];

/** Commands in indented lines; a line that is indented further goes on with the one before. */
function commands() {
  const text = readFileSync(kDocument, "utf8");
  return [...text.matchAll(/^ {4}(curl .*(?:\n {5,}.*)*)/gm)].map((match) => match[1].replace(/ *\\?\n +/g, " "));
}

test("the document's commands are answered", async () => {
  assert.ok(commands().length >= 3);
  for (const command of commands()) {
    const { stdout } = await run("sh", ["-c", `${command.replaceAll("http://127.0.0.1:8000/", server.url)} -sS -f -m 120`]);
    if (!command.includes('"stream": true')) {
      assert.ok(JSON.parse(stdout).id, command);
      continue;
    }
    const events = stdout.split("\n").filter((line) => line.startsWith("data: {"));
    assert.ok(events.length > 3, command);
    for (const event of events) JSON.parse(event.slice(6));
  }
});

test("a stream's head comes at once, then comments and events", async () => {
  const stream = await curl(kChat, "-N", "-i", ...json, "-d", JSON.stringify({ ...JSON.parse(kQuestion), stream: true }));
  assert.match(stream, /^HTTP\/1\.1 200 OK\r\n/);
  assert.match(stream, /Content-Type: text\/event-stream/);
  assert.match(stream, /^: \{"phase":/m);
  assert.match(stream, /data: \[DONE\]\n\n$/);
});

test("a body that waits to be asked for, one without a length, and several on a connection", async () => {
  assert.equal(JSON.parse(await curl(kChat, ...json, "-H", "Expect: 100-continue", "-d", kQuestion)).object, "chat.completion");
  assert.equal(JSON.parse(await curl(kChat, ...json, "-H", "Transfer-Encoding: chunked", "-d", kQuestion)).object, "chat.completion");
  const { stdout } = await run("curl", ["-sS", "-m", "120", "-w", "%{num_connects} ", server.url + "health", server.url + "v1/models"]);
  assert.match(stdout, /1 [^]*0 $/);
  assert.equal(await curl("health", "-I", "-o", "/dev/null", "-w", "%{http_code}"), "200");
});

test("what is wrong is said", async () => {
  const status = (path, ...flags) => curl(path, "-o", "/dev/null", "-w", "%{http_code}", ...flags);
  assert.equal(await status(kChat, ...json, "-d", "{"), "400");
  assert.equal(await status(kChat, "-d", kQuestion), "415"); // curl says that it is a form
  assert.equal(await status("nothing"), "404");
  assert.equal(await status(kChat), "405");
});
