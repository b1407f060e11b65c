// Any bytes as the body of a request: the jobs that it asks for, or an ApiError that a reply can
// hold. The first byte says which endpoint reads it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "server/api_error.h"
#include "server/chat_answer.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "text/byte_tokenizer.h"

namespace deltafin {
namespace {

void Require(bool good) {
  if (!good) std::abort();
}

// Takes some tokens that the request's shape allows: until the message ends there must be one.
void Answer(const ChatCompletionRequest& request, const Tokenizer& tokenizer, size_t start) {
  ChatAnswer answer(tokenizer, request.thinking, request.generation.stop, request.shape, true);
  const TokenId close = tokenizer.SpecialId("<|close|>");
  TokenId last = -1;
  for (size_t step = 0; step < 60; ++step) {
    const auto first = static_cast<TokenId>((start + 37 * step) % 256);
    TokenId id = answer.constrained() && answer.Allows(close) ? close : first;
    for (TokenId tried = 0; answer.constrained() && !answer.Allows(id); ++tried) {
      if (tried == tokenizer.vocab_size()) {
        Require(last == tokenizer.SpecialId("<|end_of_msg|>"));
        return;
      }
      id = (first + tried) % tokenizer.vocab_size();
    }
    (void)answer.Push({id, {}});
    last = id;
  }
  (void)answer.Finish();
}

void Read(uint8_t endpoint, const std::string& body) {
  static const ByteTokenizer tokenizer;
  const RequestLimits limits{{"m"}, &tokenizer, 4000, 0, 16};
  if (endpoint % 4 == 0) {
    const CompletionRequest request = ReadCompletionRequest(body, limits);
    Require(request.prompts.size() == request.max_new_tokens.size());
    for (size_t i = 0; i < request.prompts.size(); ++i) {
      Require(!request.prompts[i].empty() && request.max_new_tokens[i] >= 0);
    }
    return;
  }
  const ChatCompletionRequest request = ReadChatRequest(body, limits);
  Require(!request.prompt.ids.empty() && request.max_new_tokens > 0);
  for (const int64_t length : request.prompt.shared_lengths) {
    Require(length > 0 && length <= static_cast<int64_t>(request.prompt.ids.size()));
  }
  Answer(request, tokenizer, body.size());
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
