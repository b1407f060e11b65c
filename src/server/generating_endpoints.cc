// POST /v1/chat/completions, /v1/responses and /v1/completions.
#include <utility>

#include "server/chat_answer.h"
#include "server/chat_request.h"
#include "server/chat_writer.h"
#include "server/completion_request.h"
#include "server/completion_writer.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"
#include "server/service.h"
#include "server/text_answer.h"

namespace deltafin {
namespace {

Job JobOf(const GenerationFields& generation, int64_t choice) {
  Job job;
  job.sampling = generation.sampling;
  job.sampling.seed = SeedOfChoice(generation.sampling.seed, choice);
  return job;
}

GenerationRequest ChatGeneration(const Service& service, const std::string& id,
                                 const ChatCompletionRequest& request) {
  GenerationRequest generation;
  generation.id = id;
  generation.stream = request.generation.stream;
  generation.headers = NoticeHeaders(service, id, request.ignored, request.notes);
  for (int64_t i = 0; i < request.generation.num_choices; ++i) {
    GenerationChoice& choice = generation.choices.emplace_back();
    choice.job = JobOf(request.generation, i);
    choice.job.prompt = request.prompt.ids;
    choice.job.shared_lengths = request.prompt.shared_lengths;
    choice.job.max_new_tokens = request.max_new_tokens;
    choice.job.top_logprobs = request.top_logprobs;
    choice.job.draft_tokens = service.draft_tokens;
    choice.answer = std::make_unique<ChatAnswer>(service.engine->tokenizer(), request.thinking,
                                                 request.generation.stop, request.shape,
                                                 request.top_logprobs >= 0);
  }
  return generation;
}

}  // namespace

void HandleChat(const Service& service, const HttpRequest& http,
                const std::shared_ptr<Exchange>& exchange) {
  const ChatCompletionRequest request = ReadChatRequest(http.body, service.limits);
  const std::string id = RandomId("chatcmpl-");
  GenerationRequest generation = ChatGeneration(service, id, request);
  ChatWriterOptions writer;
  writer.heading = NewHeading(service, id);
  writer.num_choices = generation.choices.size();
  writer.thinking = request.thinking;
  writer.with_logprobs = request.top_logprobs >= 0;
  writer.include_usage = request.generation.include_usage;
  generation.writer = std::make_unique<ChatWriter>(service.engine->tokenizer(), std::move(writer));
  StartGeneration(service.generation, std::move(generation), exchange);
}

void HandleResponses(const Service& service, const HttpRequest& http,
                     const std::shared_ptr<Exchange>& exchange) {
  ResponsesRequest request = ReadResponsesRequest(http.body, service.limits);
  const std::string id = RandomId("resp_");
  GenerationRequest generation = ChatGeneration(service, id, request.chat);
  generation.writer = std::make_unique<ResponsesWriter>(
      ResponsesWriterOptions{NewHeading(service, id), std::move(request.settings)});
  StartGeneration(service.generation, std::move(generation), exchange);
}

void HandleCompletion(const Service& service, const HttpRequest& http,
                      const std::shared_ptr<Exchange>& exchange) {
  const CompletionRequest request = ReadCompletionRequest(http.body, service.limits);
  const Tokenizer& tokenizer = service.engine->tokenizer();
  const std::string id = RandomId("cmpl-");
  const bool with_logprobs = request.top_logprobs >= 0;

  TextAnswerOptions text;
  text.stops = request.generation.stop;
  if (request.stop_at_stop_tokens) text.stop_tokens = service.engine->stop_tokens();
  text.with_tokens = with_logprobs;
  text.echo = request.echo;

  GenerationRequest generation;
  generation.id = id;
  generation.stream = request.generation.stream;
  generation.headers = NoticeHeaders(service, id, request.ignored, {});
  for (size_t prompt = 0; prompt < request.prompts.size(); ++prompt) {
    for (int64_t i = 0; i < request.generation.num_choices; ++i) {
      GenerationChoice& choice = generation.choices.emplace_back();
      choice.job = JobOf(request.generation, i);
      choice.job.prompt = request.prompts[prompt];
      choice.job.max_new_tokens = request.max_new_tokens[prompt];
      choice.job.stop_at_stop_tokens = request.stop_at_stop_tokens;
      choice.job.top_logprobs = request.top_logprobs;
      choice.job.draft_tokens = service.draft_tokens;
      choice.answer = std::make_unique<TextAnswer>(tokenizer, text);
      if (!request.echo) continue;
      // With log probabilities the prompt's tokens come from the scheduler.
      choice.job.prompt_logprobs = with_logprobs;
      if (with_logprobs) continue;
      for (const TokenId token : request.prompts[prompt]) {
        choice.first_piece.content += choice.answer->PushPrompt({token, {}}).content;
      }
    }
  }
  CompletionWriterOptions writer;
  writer.heading = NewHeading(service, id);
  writer.num_prompts = request.prompts.size();
  writer.choices_per_prompt = static_cast<size_t>(request.generation.num_choices);
  writer.with_logprobs = with_logprobs;
  writer.include_usage = request.generation.include_usage;
  generation.writer = std::make_unique<CompletionWriter>(tokenizer, std::move(writer));
  StartGeneration(service.generation, std::move(generation), exchange);
}

}  // namespace deltafin
