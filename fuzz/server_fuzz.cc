// Any bytes as the body of a request: the jobs that it asks for and their answers, whole and as
// streams that say the same, or an ApiError that a reply can hold. The first byte says which
// endpoint reads it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/chat_answer.h"
#include "server/chat_request.h"
#include "server/chat_writer.h"
#include "server/completion_request.h"
#include "server/completion_writer.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"
#include "server/text_answer.h"
#include "text/byte_tokenizer.h"

namespace deltafin {
namespace {

void Require(bool good) {
  if (!good) std::abort();
}

// The JSON of a stream's events. They must be nothing but events.
std::vector<Json> EventsOf(std::string_view stream) {
  std::vector<Json> events;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    Require(end != std::string_view::npos);
    std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    if (event.starts_with("event: ")) event.remove_prefix(event.find('\n') + 1);
    Require(event.starts_with("data: ") && event.find_first_of("\r\n") == std::string_view::npos);
    if (event != "data: [DONE]") events.push_back(ParseJson(event.substr(6), "event"));
  }
  return events;
}

// The writers of one answer: to one it comes in pieces, to the other as a whole.
class Written {
 public:
  using Maker = std::function<std::unique_ptr<AnswerWriter>()>;
  explicit Written(const Maker& make) : streaming_(make()), whole_(make()) {
    stream_ = streaming_->BeginStream();
  }

  void Add(const AnswerPiece& piece) {
    stream_ += streaming_->Piece(0, piece);
    whole_->Collect(0, piece);
  }
  void End(bool is_cut) {
    AnswerEnd end;
    end.finish_reason = is_cut ? "length" : "stop";
    stream_ += streaming_->End(0, end);
    stream_ += streaming_->EndStream();
    whole_->CollectEnd(0, end);
  }

  std::vector<Json> events() const { return EventsOf(stream_); }
  Json whole() { return whole_->Whole(); }

 private:
  std::unique_ptr<AnswerWriter> streaming_;
  std::unique_ptr<AnswerWriter> whole_;
  std::string stream_;
};

// Pushes some tokens that the answer's shape allows: until the message ends there must be one.
void Generate(Answer* answer, const Tokenizer& tokenizer, size_t start, Written* written) {
  const TokenId close = tokenizer.SpecialId("<|close|>");
  TokenId last = -1;
  for (size_t step = 0; step < 60 && !answer->is_enough(); ++step) {
    const auto first = static_cast<TokenId>((start + 37 * step) % 256);
    TokenId id = answer->constrained() && answer->Allows(close) ? close : first;
    for (TokenId tried = 0; answer->constrained() && !answer->Allows(id); ++tried) {
      if (tried == tokenizer.vocab_size()) {
        Require(last == tokenizer.SpecialId("<|end_of_msg|>"));
        step = 60;
        break;
      }
      id = (first + tried) % tokenizer.vocab_size();
    }
    if (step == 60) break;
    written->Add(answer->Push({id, {}}));
    last = id;
  }
  written->Add(answer->Finish());
  written->End(start % 2 == 0);
}

std::string Joined(const std::vector<Json>& events, const Json::json_pointer& place) {
  std::string text;
  for (const Json& event : events) {
    if (event.contains(place) && event.at(place).is_string()) text += event.at(place);
  }
  return text;
}

void Complete(const std::string& body, const RequestLimits& limits) {
  const CompletionRequest request = ReadCompletionRequest(body, limits);
  Require(request.prompts.size() == request.max_new_tokens.size());
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    Require(!request.prompts[i].empty() && request.max_new_tokens[i] >= 0);
  }
  const Tokenizer& tokenizer = *limits.tokenizer;
  TextAnswerOptions options;
  options.stops = request.generation.stop;
  options.with_tokens = request.top_logprobs >= 0;
  TextAnswer answer(tokenizer, options);
  Written written([&] {
    CompletionWriterOptions writer;
    writer.with_logprobs = options.with_tokens;
    writer.include_usage = request.generation.include_usage;
    return std::make_unique<CompletionWriter>(tokenizer, std::move(writer));
  });
  Generate(&answer, tokenizer, body.size(), &written);
  const Json::json_pointer text("/choices/0/text");
  Require(Joined(written.events(), text) == written.whole().at(text));
}

std::unique_ptr<ChatAnswer> AnswerTo(const ChatCompletionRequest& request,
                                     const Tokenizer& tokenizer) {
  Require(!request.prompt.ids.empty() && request.max_new_tokens > 0);
  for (const int64_t length : request.prompt.shared_lengths) {
    Require(length > 0 && length <= static_cast<int64_t>(request.prompt.ids.size()));
  }
  return std::make_unique<ChatAnswer>(tokenizer, request.thinking, request.generation.stop,
                                      request.shape, request.top_logprobs >= 0);
}

void Chat(const std::string& body, const RequestLimits& limits) {
  const Tokenizer& tokenizer = *limits.tokenizer;
  const ChatCompletionRequest request = ReadChatRequest(body, limits);
  const auto answer = AnswerTo(request, tokenizer);
  Written written([&] {
    ChatWriterOptions writer;
    writer.thinking = request.thinking;
    writer.with_logprobs = request.top_logprobs >= 0;
    writer.include_usage = request.generation.include_usage;
    return std::make_unique<ChatWriter>(tokenizer, std::move(writer));
  });
  Generate(answer.get(), tokenizer, body.size(), &written);
  const Json message = written.whole().at(Json::json_pointer("/choices/0/message"));
  const std::string content = message.at("content").is_null() ? "" : message.at("content");
  Require(Joined(written.events(), Json::json_pointer("/choices/0/delta/content")) == content);
}

void Respond(const std::string& body, const RequestLimits& limits) {
  const Tokenizer& tokenizer = *limits.tokenizer;
  const ResponsesRequest request = ReadResponsesRequest(body, limits);
  const auto answer = AnswerTo(request.chat, tokenizer);
  Written written([&] {
    return std::make_unique<ResponsesWriter>(ResponsesWriterOptions{{}, request.settings});
  });
  Generate(answer.get(), tokenizer, body.size(), &written);
  const std::vector<Json> events = written.events();
  const Json output = written.whole().at("output");
  Require(events.back().at("response").at("output").size() == output.size());
  std::string text;
  for (const Json& event : events) {
    if (event.at("type") == "response.output_text.delta") text += event.at("delta");
  }
  for (const Json& item : output) {
    if (item.at("type") != "message") continue;
    Require(text == item.at("content").at(0).at("text"));
  }
}

void Read(uint8_t endpoint, const std::string& body) {
  static const ByteTokenizer tokenizer;
  const RequestLimits limits{{"m"}, &tokenizer, 4000, 0, 16};
  if (endpoint % 4 == 0) return Complete(body, limits);
  if (endpoint % 4 == 3) return Respond(body, limits);
  Chat(body, limits);
}

}  // namespace
}  // namespace deltafin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    deltafin::Read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const deltafin::ApiError& error) {
    const deltafin::HttpResponse response = deltafin::ErrorResponse(error);
    if (response.status < 400 || response.body.empty()) std::abort();
  }
  return 0;
}
