// A stand-in for `deltafin serve`, to work on the page without a model:
//
//   node tests/clients/fake_server.mjs [PORT] [LAYERS EXPERTS TOP_K MILLISECONDS_A_TOKEN]
//
// It answers like docs/server.md says, with made-up text and picks.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";

const kPage = join(dirname(fileURLToPath(import.meta.url)), "../../src/server/page");
const kTypes = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };
const kPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const [port = 8123, layers = 93, experts = 896, topK = 16, pace = 25] = process.argv.slice(2).map(Number);

const kAnswer = `Here is **what you asked** for, with \`code\`, a [link](https://example.org/a) and *stress*.

## A heading

1. First
2. Second
   - nested
   - [x] done

\`\`\`python
def ask(question: str) -> int:
    # The answer takes a while.
    return len(question) * 42  # "quick"
\`\`\`

| layer | kind | picks |
|---|:-:|--:|
| 0 | KDA | 16 |
| 3 | MLA | 12 |

> Weights stay on the disk, and each token reads only what it touches.

The end.`;
const kThought =
  "The user asks something. I should think about it for a moment, list what I know, and then answer " +
  "clearly and briefly. Let me check the numbers once more before I write.";

const state = { running: 0, queued: 0, newTokens: 0, promptTokens: 0, passes: 0, finished: 0, jobs: new Map() };
const popularity = Array.from({ length: layers }, () =>
  Array.from({ length: experts }, () => Math.exp(2.2 * Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(7 * Math.random()))),
);
const sums = popularity.map((row) => row.reduce((a, b) => a + b, 0));

function draw(layer) {
  const ids = new Set();
  while (ids.size < topK) {
    let left = Math.random() * sums[layer];
    let id = 0;
    while (id + 1 < experts && (left -= popularity[layer][id]) > 0) id++;
    ids.add(id);
  }
  return [...ids];
}

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const event = (data) => `data: ${JSON.stringify(data)}\n\n`;

async function chat(request, response) {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  let gone = false;
  response.on("close", () => (gone = true));
  const job = { id: `chatcmpl-${Math.random()}`, phase: "prefill", jobs_before: 0, prompt_tokens: 640, cached_tokens: 128,
    done_tokens: 128, layer: 0, num_layers: layers, seconds_left: 2, new_tokens: 0, seconds: 0 };
  state.jobs.set(job.id, job);
  for (let i = 0; i < 8 && !gone; i++) {
    job.layer = Math.floor((i / 8) * layers);
    job.done_tokens = 128 + i * 64;
    job.seconds_left = 2 - i / 4;
    state.promptTokens += 64;
    response.write(`: ${JSON.stringify(job)}\n\n`);
    await sleep(200);
  }
  job.phase = "decode";
  const question = body.messages.at(-1).content;
  const say = async (delta) => {
    job.new_tokens++;
    const began = Date.now();
    while (Date.now() - began < pace && !gone) {
      job.layer = Math.min(layers - 1, Math.floor(((Date.now() - began) / pace) * layers));
      await sleep(Math.min(pace, 100));
    }
    state.newTokens++;
    state.passes++;
    response.write(event({ id: job.id, object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason: null }] }));
  };
  const answer = question.startsWith("echo ") ? question.slice(5) : kAnswer;
  if (body.reasoning_effort !== "none") {
    for (const word of kThought.match(/\S+\s*/g)) if (!gone) await say({ reasoning_content: word });
  }
  for (const word of answer.match(/\S+\s*/g)) if (!gone) await say({ content: word });
  response.write(event({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }));
  response.write(event({ choices: [], usage: { prompt_tokens: 640, completion_tokens: job.new_tokens, prompt_tokens_details: { cached_tokens: 128 } } }));
  response.end("data: [DONE]\n\n");
  state.jobs.delete(job.id);
  state.finished++;
}

async function live(response) {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  let gone = false;
  response.on("close", () => (gone = true));
  response.write(event({ type: "hello", version: "0.1.0", model: "fake-K3", num_layers: layers, num_experts: experts,
    experts_per_token: topK, expert_bytes: 17547264, bytes_per_token: 137e9, context_tokens: 8192, parallel: 4, max_queued: 32,
    describe: ["fake-K3: 93 layers", "spine int8, 56 GB on disk"],
    plan: [{ what: "budget", bytes: 24e9, note: "" }, { what: "program", bytes: 1.2e9, note: "" }, { what: "session state", bytes: 0.9e9, note: "" },
      { what: "working memory", bytes: 0.4e9, note: "" }, { what: "spine", bytes: 12e9, note: "" }, { what: "expert slots", bytes: 8.4e9, note: "480 experts" }, { what: "unused", bytes: 1.1e9, note: "" }] }));
  let requested = 0;
  let hits = 0;
  let before = { ...state };
  let shown = -1;
  const began = Date.now();
  while (!gone) {
    const busy = state.jobs.size > 0;
    const window = Math.max(0.25, pace / 1000);
    const rate = (name) => (pace > 250 ? (busy ? 1 / window : 0) : (state[name] - before[name]) * 4);
    const passes = rate("passes");
    if (busy) {
      requested += 400;
      hits += 340 + Math.floor(Math.random() * 40);
    }
    response.write(event({ type: "state", time: (Date.now() - began) / 1000, running: state.jobs.size, queued: 0,
      totals: { finished_jobs: state.finished, failed_jobs: 0, cancelled_jobs: 0, prompt_tokens: state.promptTokens, cached_tokens: 128,
        new_tokens: state.newTokens, passes: state.passes, snapshot_bytes: 4e8 },
      experts: { requested, hits, ahead_hits: Math.floor(hits / 3), ahead_late: 0, bytes_demand: (requested - hits) * 17e6, bytes_ahead: 0, bytes_wasted: 0, bytes_warm: 0, wait_seconds: 0 },
      rates: { new_tokens: rate("newTokens"), prompt_tokens: rate("promptTokens"), passes, disk_bytes: busy ? 3e9 + 1e9 * Math.random() : 0,
        ram_bytes: busy ? 14e9 + 4e9 * Math.random() : 0, spine_bytes: busy ? 2e9 : 0, busy: busy ? 0.98 : 0, phases: busy ? { "spine wait": 0.2, "expert wait": 0.25, KDA: 0.15, MLA: 0.1, experts: 0.2, shared: 0.05, other: 0.05 } : {}, hit_rate: busy ? 0.87 + 0.08 * Math.random() : null },
      jobs: [...state.jobs.values()],
      ...(busy && shown !== state.passes ? { picks: Array.from({ length: layers - 1 }, (_, i) => ({ layer: i + 1, ids: draw(i + 1) })) } : {}) }));
    shown = state.passes;
    before = { ...state };
    await sleep(busy ? 250 : 1000);
  }
}

createServer(async (request, response) => {
  const path = new URL(request.url, "http://localhost").pathname;
  if (path === "/v1/chat/completions") return chat(request, response);
  if (path === "/api/live") return live(response);
  if (path === "/v1/models") {
    response.writeHead(200, { "Content-Type": "application/json" });
    return response.end(JSON.stringify({ data: [{ id: "fake-K3" }] }));
  }
  try {
    const name = path === "/" ? "index.html" : path.slice(1).replace(/\//g, "");
    const content = await readFile(join(kPage, name));
    response.writeHead(200, { "Content-Type": kTypes[extname(name)] ?? "text/plain", "Content-Security-Policy": kPolicy });
    response.end(content);
  } catch {
    response.writeHead(404).end();
  }
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));
