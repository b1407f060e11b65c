// One answer while it is made: fills a message from the server's stream.
import { chatRequest, streamChat } from "./api.js";

/**
 * `message` gets content, reasoning, stats, stopped and error. `on`: {changed(), progress(progress),
 * phase(name)} with the names "waiting", "thinking", "answering". Never throws: resolves when the
 * answer ended, was stopped or failed.
 */
export async function fillAnswer(message, history, model, settings, signal, on) {
  const began = performance.now();
  let firstToken = 0;
  let firstContent = 0;
  let pieces = 0;
  let usage = null;
  const since = (time) => (performance.now() - time) / 1000;
  on.phase("waiting");
  on.progress({ phase: "sent" });
  try {
    await streamChat(chatRequest(model, history, settings), settings.apiKey, signal, {
      delta(delta) {
        const reasoning = delta.reasoning_content ?? "";
        const content = delta.content ?? "";
        if (reasoning === "" && content === "") return;
        pieces++;
        if (firstToken === 0) {
          firstToken = performance.now();
          on.progress(null);
        }
        if (reasoning !== "") {
          if (!message.reasoning) on.phase("thinking");
          message.reasoning = (message.reasoning ?? "") + reasoning;
        }
        if (content !== "") {
          if (message.content === "") {
            firstContent = performance.now();
            if (message.reasoning) message.stats = { thinkingSeconds: (firstContent - firstToken) / 1000 };
            on.phase("answering");
          }
          message.content += content;
        }
        on.progress(null);
        on.changed();
      },
      progress(progress) {
        on.progress(progress);
      },
      finish(reason) {
        if (reason === "length") message.error = "Cut off: the limit of new tokens is reached.";
      },
      usage(value) {
        usage = value;
      },
    });
  } catch (error) {
    if (signal.aborted) {
      message.stopped = true;
    } else {
      message.error =
        error instanceof TypeError ? "The server cannot be reached. Is it still running?" : error.message;
    }
  }
  message.stats = {
    tokens: usage?.completion_tokens ?? pieces,
    seconds: firstToken > 0 ? since(firstToken) : since(began),
    promptTokens: usage?.prompt_tokens ?? 0,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
  };
  if (message.reasoning && firstToken > 0) {
    message.stats.thinkingSeconds = ((firstContent || performance.now()) - firstToken) / 1000;
  }
}
