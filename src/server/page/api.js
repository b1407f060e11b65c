// The server: chat answers, and what the machine does.
import { createSseParser } from "./sse.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(apiKey) {
  return apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // No JSON: the status has to do.
  }
  if (response.status === 401) message = "This server wants an API key: see Settings.";
  if (response.status === 429) {
    const wait = response.headers.get("Retry-After");
    message = `Too many are waiting already. Try again${wait ? ` in ${wait} s` : " later"}.`;
  }
  return new ApiError(message, response.status);
}

async function readEvents(response, onEvent, onComment) {
  const parser = createSseParser(onEvent, onComment);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parser.push(value);
  }
}

/** The request of a conversation, without what the server decides. */
export function chatRequest(model, messages, settings) {
  const request = {
    model,
    stream: true,
    stream_options: { include_usage: true },
    reasoning_effort: settings.effort,
    messages: [],
  };
  if (settings.system.trim() !== "") {
    request.messages.push({ role: "system", content: settings.system });
  }
  for (const message of messages) {
    // An answer that failed or was stopped before its first word was none.
    if (message.role === "assistant" && message.content === "" && !message.reasoning) continue;
    const sent = { role: message.role, content: message.content };
    // What was thought is part of the prompt that the server has computed already.
    if (message.reasoning) sent.reasoning_content = message.reasoning;
    request.messages.push(sent);
  }
  if (settings.temperature !== "") request.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") request.max_tokens = Number(settings.maxTokens);
  return request;
}

/**
 * Streams an answer. `on`: {delta(delta), progress(progress), finish(reason), usage(usage)}. Throws
 * an ApiError, an AbortError, or a TypeError when the connection broke.
 */
export async function streamChat(request, apiKey, signal, on) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(apiKey) },
    body: JSON.stringify(request),
    signal,
  });
  if (!response.ok) throw await failure(response);
  let isDone = false;
  const onEvent = ({ data }) => {
    if (data === "[DONE]") {
      isDone = true;
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message ?? "The answer failed.", 0);
    if (chunk.usage) on.usage(chunk.usage);
    const choice = chunk.choices?.[0];
    if (choice?.delta) on.delta(choice.delta);
    if (choice?.finish_reason) on.finish(choice.finish_reason);
  };
  const onComment = (comment) => {
    if (!comment.startsWith("{")) return;
    try {
      on.progress(JSON.parse(comment));
    } catch {
      // Somebody else's comment.
    }
  };
  await readEvents(response, onEvent, onComment);
  if (!isDone) throw new ApiError("The connection ended before the answer did.", 0);
}

export async function fetchModels(apiKey) {
  const response = await fetch("v1/models", { headers: headers(apiKey) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data ?? [];
}

/**
 * Follows /api/live for ever, connecting again where it breaks. `on`: {event(event), lost(error)}.
 * Returns a function that ends it.
 */
export function followLive(apiKey, on) {
  const controller = new AbortController();
  let wait = 500;
  const follow = async () => {
    while (!controller.signal.aborted) {
      try {
        const response = await fetch("api/live", {
          headers: headers(apiKey),
          signal: controller.signal,
        });
        if (!response.ok) throw await failure(response);
        await readEvents(
          response,
          ({ data }) => {
            wait = 500;
            on.event(JSON.parse(data));
          },
          () => {},
        );
        throw new TypeError("The connection ended.");
      } catch (error) {
        if (controller.signal.aborted) return;
        on.lost(error);
        await new Promise((resolve) => setTimeout(resolve, wait));
        wait = Math.min(wait * 2, 10_000);
      }
    }
  };
  follow();
  return () => controller.abort();
}
