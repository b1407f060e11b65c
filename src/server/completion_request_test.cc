#include "server/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/server_test_util.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RequestLimits CompletionLimits() { return {{"m"}, &TestTokenizer(), 2000, 0, 16}; }

CompletionRequest ReadCompletion(const std::string& fields) {
  return ReadCompletionRequest("{" + fields + "}", CompletionLimits());
}

void ExpectBadCompletion(const std::string& fields, const std::string& param,
                         const std::string& message) {
  try {
    (void)ReadCompletion(fields);
    ADD_FAILURE() << fields << " was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << fields;
    EXPECT_EQ(error.param(), param) << fields;
    EXPECT_THAT(error.what(), HasSubstr(message)) << fields;
  }
}

TEST(CompletionRequestTest, NoMoreAnswersThanThereCanBeRoomFor) {
  RequestLimits limits = CompletionLimits();
  limits.max_answers = 6;
  const auto read = [&](const std::string& n) {
    return ReadCompletionRequest(R"({"prompt": ["a", "b", "c"], "n": )" + n + "}", limits);
  };
  EXPECT_EQ(read("2").prompts.size(), 3u);
  try {
    (void)read("3");
    ADD_FAILURE();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param(), "prompt");
    EXPECT_THAT(error.what(), HasSubstr("at most 6 answers"));
  }
}

TEST(CompletionRequestTest, Prompts) {
  const std::vector<TokenId> hello = TestTokenizer().Encode("Hello", Specials::kPlain);
  EXPECT_THAT(ReadCompletion(R"("prompt": "Hello")").prompts, ElementsAre(hello));
  EXPECT_THAT(ReadCompletion(R"("prompt": ["Hello", "Hello"])").prompts, ElementsAre(hello, hello));
  EXPECT_THAT(ReadCompletion(R"("prompt": [5, 6])").prompts,
              ElementsAre(std::vector<TokenId>{5, 6}));
  EXPECT_THAT(ReadCompletion(R"("prompt": [[5], [6, 7], "Hello"])").prompts,
              ElementsAre(std::vector<TokenId>{5}, std::vector<TokenId>{6, 7}, hello));
  // The spelling of a control token in a prompt is plain text.
  EXPECT_GT(ReadCompletion(R"("prompt": "<|open|>")").prompts[0].size(), 1u);
}

TEST(CompletionRequestTest, APromptThatIsOnlyScoredMayFillTheContext) {
  RequestLimits limits = CompletionLimits();
  limits.context_tokens = 2;
  const auto read = [&](const std::string& prompt, const std::string& tokens) {
    return ReadCompletionRequest(
        R"({"echo": true, "prompt": )" + prompt + R"(, "max_tokens": )" + tokens + "}", limits);
  };
  EXPECT_EQ(read("[5, 6]", "0").max_new_tokens, std::vector<int64_t>{0});
  EXPECT_THROW((void)read("[5, 6]", "1"), ApiError);
  EXPECT_THROW((void)read("[5, 6, 7]", "0"), ApiError);
}

TEST(CompletionRequestTest, PromptsThatAreNone) {
  ExpectBadCompletion("", "prompt", "got nothing");
  ExpectBadCompletion(R"("prompt": "")", "prompt", "at least one token");
  ExpectBadCompletion(R"("prompt": [])", "prompt", "1 to 64");
  ExpectBadCompletion(R"("prompt": [[]])", "prompt[0]", "a text or an array of token ids");
  ExpectBadCompletion(R"("prompt": ["a", ""])", "prompt[1]", "at least one token");
  ExpectBadCompletion(R"("prompt": [1, -1])", "prompt", "prompt[1]: expected a token id");
  ExpectBadCompletion(R"("prompt": [1, 99999999])", "prompt", "expected a token id");
  ExpectBadCompletion(R"("prompt": [1.5])", "prompt", "expected a token id");
  ExpectBadCompletion(R"("prompt": [18446744073709551615])", "prompt", "expected a token id");
  ExpectBadCompletion(R"("prompt": {})", "prompt", "a text");
}

TEST(CompletionRequestTest, Fields) {
  const CompletionRequest request = ReadCompletion(R"("prompt": "a", "max_tokens": 0, "echo": true,
      "logprobs": 0, "ignore_eos": true, "best_of": 2, "n": 2, "suffix": "", "x": 1)");
  EXPECT_EQ(request.max_new_tokens, std::vector<int64_t>{0});
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.top_logprobs, 0);
  EXPECT_FALSE(request.stop_at_stop_tokens);
  EXPECT_THAT(request.ignored, ElementsAre("x"));
  EXPECT_EQ(ReadCompletion(R"("prompt": "a")").max_new_tokens, std::vector<int64_t>{256});
  ExpectBadCompletion(R"("prompt": "a", "max_tokens": 0)", "max_tokens", "at least 1");
  EXPECT_THAT(
      ReadCompletion(R"("prompt": "a", "stream": true, "stream_options": {"y": 1})").ignored,
      ElementsAre("stream_options.y"));
  ExpectBadCompletion(R"("prompt": "a", "suffix": "b")", "suffix", "does not fill gaps");
  ExpectBadCompletion(R"("prompt": "a", "best_of": 2)", "best_of", "the same as n");
  ExpectBadCompletion(R"("prompt": "a", "logprobs": 21)", "logprobs", "0 to 20");
  ExpectBadCompletion(R"("prompt": "a", "response_format": {"type": "json_object"})",
                      "response_format", "only chat");
}

}  // namespace
}  // namespace deltafin
