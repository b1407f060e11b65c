// The official client of OpenAI's interface against `deltafin serve` with k3-nano.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

const kModel = "k3-nano";
const kQuestion = [{ role: "user", content: "What is the capital of France?" }];
const kTool = {
  type: "function",
  function: {
    name: "look_up",
    description: "Looks something up.",
    strict: true,
    parameters: {
      type: "object",
      properties: { kind: { enum: ["old", "new"] }, size: { type: "integer" } },
      required: ["kind", "size"],
      additionalProperties: false,
    },
  },
};

let server;
let client;

before(async () => {
  server = await startServer(["--queue", "16"]);
  client = new OpenAI({ baseURL: `${server.url}v1`, apiKey: "none", maxRetries: 0 });
});
after(() => server.stop());

const ask = (fields = {}, options = {}) =>
  client.chat.completions.create({ model: kModel, messages: kQuestion, ...fields }, options);

async function metric(name) {
  const text = await (await fetch(`${server.url}metrics`)).text();
  return Number(new RegExp(`^deltafin_${name} (.*)$`, "m").exec(text)[1]);
}

async function until(condition) {
  for (let i = 0; i < 1200; ++i) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("it did not happen");
}

// What makes k3-nano end its text and call, instead of talking for ever: a bias to <|close|>.
async function closeBias() {
  const post = async (path, body) =>
    (await fetch(server.url + path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    })).json();
  const { tokens } = await post("tokenize", { messages: kQuestion });
  for (const token of tokens) {
    const { content } = await post("detokenize", { tokens: [token] });
    if (content === "<|close|>") return { [token]: 30 };
  }
  return assert.fail("no <|close|>");
}

test("models", async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, kModel);
  assert.equal((await client.models.retrieve(kModel)).object, "model");
  await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
});

test("a chat answer, whole and streamed", async () => {
  const whole = await ask();
  const message = whole.choices[0].message;
  assert.equal(message.role, "assistant");
  assert.ok(message.content.length > 0);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

  const stream = await ask({ stream: true, stream_options: { include_usage: true } });
  let content = "";
  let reasoning = "";
  let finish = null;
  let usage = null;
  for await (const chunk of stream) {
    if (chunk.usage) usage = chunk.usage;
    if (chunk.choices.length === 0) continue;
    content += chunk.choices[0].delta.content ?? "";
    reasoning += chunk.choices[0].delta.reasoning_content ?? "";
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  assert.equal(content, message.content);
  assert.equal(reasoning, message.reasoning_content);
  assert.equal(finish, "stop");
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the client's own helper follows a stream", async () => {
  const whole = await ask();
  const stream = client.chat.completions.stream({ model: kModel, messages: kQuestion });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test("options: n, stop, seed, logprobs, max_completion_tokens", async () => {
  const several = await ask({ n: 2, temperature: 1, seed: 1, max_completion_tokens: 20 });
  assert.equal(several.choices.length, 2);
  assert.equal(several.choices[0].finish_reason, "length");
  const content = (await ask()).choices[0].message.content;
  const stop = content.slice(1, 3);
  assert.equal((await ask({ stop: [stop] })).choices[0].message.content, content.split(stop)[0]);
  const logprobs = (await ask({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
  assert.equal(logprobs.map((entry) => entry.token).join(""), content);
  assert.ok(logprobs.every((entry) => entry.top_logprobs.length === 2));
});

test("text completions", async () => {
  const whole = await client.completions.create({
    model: kModel, prompt: "The capital of France is", max_tokens: 20,
  });
  assert.equal(whole.choices[0].text, " Paris.");
  let text = "";
  const stream = await client.completions.create({
    model: kModel, prompt: "The capital of France is", max_tokens: 20, stream: true,
  });
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, " Paris.");
});

test("JSON that follows a schema", async () => {
  const answer = await ask({
    reasoning_effort: "none",
    response_format: { type: "json_schema", json_schema: { name: "x", strict: true, schema: kTool.function.parameters } },
  });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.ok(["old", "new"].includes(value.kind));
  assert.ok(Number.isInteger(value.size));
});

test("a tool is called and its result goes back", async () => {
  const fields = {
    tools: [kTool],
    tool_choice: { type: "function", function: { name: "look_up" } },
    parallel_tool_calls: false,
    reasoning_effort: "none",
    logit_bias: await closeBias(),
  };
  const whole = (await ask(fields)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  const [call] = whole.message.tool_calls;
  assert.equal(call.function.name, "look_up");
  assert.ok(["old", "new"].includes(JSON.parse(call.function.arguments).kind));

  const stream = client.chat.completions.stream({ model: kModel, messages: kQuestion, ...fields });
  const streamed = (await stream.finalChatCompletion()).choices[0];
  assert.equal(streamed.finish_reason, "tool_calls");
  assert.equal(streamed.message.tool_calls[0].function.arguments, call.function.arguments);

  const next = await ask({
    messages: [...kQuestion, whole.message, { role: "tool", tool_call_id: call.id, content: "42" }],
    tools: [kTool],
    tool_choice: "none",
    max_tokens: 20,
  });
  assert.equal(next.choices[0].message.tool_calls, undefined);
});

test("responses, whole and streamed", async () => {
  const chat = (await ask()).choices[0].message;
  const input = kQuestion[0].content;
  const whole = await client.responses.create({ model: kModel, input });
  assert.equal(whole.output_text, chat.content);
  assert.equal(whole.status, "completed");
  assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message"]);
  assert.equal(whole.output[0].content[0].text, chat.reasoning_content);
  assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);

  const stream = await client.responses.create({ model: kModel, input: kQuestion, stream: true });
  let text = "";
  let reasoning = "";
  let last = null;
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.reasoning_text.delta") reasoning += event.delta;
    last = event;
  }
  assert.equal(text, chat.content);
  assert.equal(reasoning, chat.reasoning_content);
  assert.equal(last.type, "response.completed");
  assert.deepEqual(last.response.usage.output_tokens, whole.usage.output_tokens);

  const helped = await client.responses.stream({ model: kModel, input }).finalResponse();
  assert.equal(helped.output_text, chat.content);

  // The answer goes back as it came.
  const next = await client.responses.create({
    model: kModel, instructions: "Be kind.", max_output_tokens: 5,
    input: [...kQuestion, ...whole.output, { role: "user", content: "And of Japan?" }],
  });
  assert.equal(next.status, "incomplete");
  assert.equal(next.incomplete_details.reason, "max_output_tokens");
  assert.equal(next.usage.output_tokens, 5);
});

test("a tool is called through responses, and its result goes back", async () => {
  const fields = {
    tools: [{ type: "function", ...kTool.function }],
    tool_choice: { type: "function", name: "look_up" },
    parallel_tool_calls: false,
    reasoning: { effort: "none" },
    logit_bias: await closeBias(),
  };
  const whole = await client.responses.create({ model: kModel, input: kQuestion, ...fields });
  const call = whole.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "look_up");
  assert.ok(["old", "new"].includes(JSON.parse(call.arguments).kind));

  const helped = await client.responses.stream({ model: kModel, input: kQuestion, ...fields }).finalResponse();
  assert.equal(helped.output.find((item) => item.type === "function_call").arguments, call.arguments);

  const next = await client.responses.create({
    model: kModel, tools: fields.tools, tool_choice: "none", max_output_tokens: 20,
    input: [...kQuestion, ...whole.output, { type: "function_call_output", call_id: call.call_id, output: "42" }],
  });
  assert.ok(next.output.every((item) => item.type !== "function_call"));
});

test("responses that follow a schema, and those that cannot be", async () => {
  const answer = await client.responses.parse({
    model: kModel, input: kQuestion, reasoning: { effort: "none" },
    text: { format: { type: "json_schema", name: "x", strict: true, schema: kTool.function.parameters } },
  });
  assert.ok(["old", "new"].includes(JSON.parse(answer.output_text).kind));
  const refused = async (fields, param) => {
    await assert.rejects(client.responses.create({ model: kModel, input: "x", ...fields }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, `${error}`);
      assert.equal(error.param, param);
      return true;
    });
  };
  await refused({ store: true }, "store");
  await refused({ previous_response_id: "resp_1" }, "previous_response_id");
  await refused({ tools: [{ type: "web_search" }] }, "tools[0].type");
  await refused({ max_output_tokens: 0 }, "max_output_tokens");
  await assert.rejects(client.responses.retrieve("resp_1"), OpenAI.NotFoundError);
});

test("errors are the client's own", async () => {
  const status = async (promise, type, param) => {
    await assert.rejects(promise, (error) => {
      assert.ok(error instanceof type, `${error}`);
      assert.equal(error.param ?? null, param);
      return true;
    });
  };
  await status(ask({ temperature: -1 }), OpenAI.BadRequestError, "temperature");
  await status(ask({ model: "gpt-4" }), OpenAI.NotFoundError, "model");
  await status(ask({ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] }),
    OpenAI.BadRequestError, "messages[0].content[0]");
  await status(client.completions.create({ model: kModel, prompt: "a", suffix: "b" }), OpenAI.BadRequestError, "suffix");
  await status(client.embeddings.create({ model: kModel, input: "a" }), OpenAI.NotFoundError, null);
});

test("an abort ends the work", async () => {
  const stream = await client.completions.create({
    model: kModel, prompt: "Once", max_tokens: 7000, ignore_eos: true, stream: true,
  });
  let pieces = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.object, "text_completion");
    if (++pieces === 5) break;  // which aborts the request
  }
  const control = new AbortController();
  const whole = client.completions.create(
    { model: kModel, prompt: "Twice", max_tokens: 7000, ignore_eos: true }, { signal: control.signal });
  setTimeout(() => control.abort(), 300);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await until(async () => (await metric("jobs_running")) === 0);
});

test("many clients at once", async () => {
  const alone = (await ask()).choices[0].message;
  const all = await Promise.all(Array.from({ length: 12 }, () => ask()));
  for (const answer of all) assert.deepEqual(answer.choices[0].message, alone);
});
