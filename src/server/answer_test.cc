#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat_answer.h"
#include "server/server_test_util.h"
#include "server/text_answer.h"

namespace deltafin {
namespace {

std::vector<TokenId> Ids(const std::string& text) {
  return TestTokenizer().Encode(text, Specials::kAllowed);
}

// Everything that an answer shows for these tokens.
AnswerPiece Show(Answer* answer, const std::vector<TokenId>& ids) {
  AnswerPiece all;
  const auto add = [&](AnswerPiece piece) {
    all.reasoning += piece.reasoning;
    all.content += piece.content;
    for (auto& call : piece.finished_calls) all.finished_calls.push_back(std::move(call));
    for (auto& call : piece.call_pieces) all.call_pieces.push_back(std::move(call));
    for (auto& token : piece.tokens) all.tokens.push_back(std::move(token));
  };
  for (const TokenId id : ids) {
    if (answer->is_enough()) break;
    add(answer->Push({id, PositionLogprobs{-1, {}}}));
  }
  add(answer->Finish());
  return all;
}

std::string TextOf(const std::vector<ShownToken>& tokens) {
  std::string text;
  for (const ShownToken& token : tokens) text += TestTokenizer().Bytes(token.id);
  return text;
}

const std::string kAnswer =
    "Let me see \xc3\xa9\xf0\x9f\x98\x80.<|close|>think<|sep|><|open|>response<|sep|>"
    "The \xf0\x9f\x98\x80 answer. STOP here<|close|>response<|sep|>";
const std::string kCalls =
    "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|close|>call<|sep|>"
    "<|close|>tools<|sep|>";
const std::string kEnd = "<|close|>message<|sep|><|end_of_msg|>";

TEST(ChatAnswerTest, ReasoningContentAndCalls) {
  ChatAnswer answer(TestTokenizer(), true, {}, nullptr, true);
  const AnswerPiece all = Show(&answer, Ids(kAnswer + kCalls + kEnd));
  EXPECT_EQ(all.reasoning, "Let me see \xc3\xa9\xf0\x9f\x98\x80.");
  EXPECT_EQ(all.content, "The \xf0\x9f\x98\x80 answer. STOP here");
  ASSERT_EQ(all.finished_calls.size(), 1u);
  EXPECT_TRUE(answer.has_calls());
  EXPECT_FALSE(answer.is_enough());
  // The tokens are those of the content: not the tags, the reasoning or the call.
  EXPECT_EQ(TextOf(all.tokens), all.content);
  EXPECT_EQ(answer.reasoning_tokens(), static_cast<int64_t>(Ids(all.reasoning).size()));
}

TEST(ChatAnswerTest, StopStringsEndTheContentOnly) {
  ChatAnswer answer(TestTokenizer(), true, {"Let me", "STOP"}, nullptr, true);
  const AnswerPiece all = Show(&answer, Ids(kAnswer + kCalls + kEnd));
  EXPECT_EQ(all.reasoning, "Let me see \xc3\xa9\xf0\x9f\x98\x80.");
  EXPECT_EQ(all.content, "The \xf0\x9f\x98\x80 answer. ");
  EXPECT_TRUE(answer.is_enough());
  EXPECT_FALSE(answer.has_calls());
  EXPECT_TRUE(all.call_pieces.empty());
  EXPECT_TRUE(TextOf(all.tokens).starts_with(all.content.substr(0, 15)));
  EXPECT_EQ(TextOf(all.tokens).find("STOP"), std::string::npos);
}

TEST(ChatAnswerTest, WhatAStopHeldBackComesAtTheEnd) {
  ChatAnswer answer(TestTokenizer(), true, {"here we are"}, nullptr, true);
  const AnswerPiece all = Show(&answer, Ids(kAnswer + kEnd));
  EXPECT_EQ(all.content, "The \xf0\x9f\x98\x80 answer. STOP here");
  EXPECT_EQ(TextOf(all.tokens), all.content);
}

TEST(ChatAnswerTest, WithoutLogprobsNoTokens) {
  ChatAnswer answer(TestTokenizer(), true, {}, nullptr, false);
  EXPECT_TRUE(Show(&answer, Ids(kAnswer + kEnd)).tokens.empty());
}

TEST(TextAnswerTest, TheStopTokenIsNoText) {
  TextAnswerOptions options;
  options.stop_tokens = {TestTokenizer().SpecialId("<|end_of_msg|>")};
  options.with_tokens = true;
  TextAnswer answer(TestTokenizer(), options);
  const AnswerPiece all = Show(&answer, Ids("a \xf0\x9f\x98\x80 b<|end_of_msg|>"));
  EXPECT_EQ(all.content, "a \xf0\x9f\x98\x80 b");
  EXPECT_EQ(TextOf(all.tokens), all.content);
  options.stop_tokens = {};
  TextAnswer other(TestTokenizer(), options);
  EXPECT_EQ(Show(&other, Ids("a<|end_of_msg|>")).content, "a<|end_of_msg|>");
}

TEST(TextAnswerTest, OffsetsCountCharacters) {
  TextAnswerOptions options;
  options.with_tokens = true;
  TextAnswer answer(TestTokenizer(), options);
  std::vector<TokenId> ids = Ids("\xc3\xa9\xc3\xa9");
  const size_t before = ids.size();
  for (const TokenId id : Ids("x")) ids.push_back(id);
  const AnswerPiece all = Show(&answer, ids);
  ASSERT_GT(all.tokens.size(), before);
  EXPECT_EQ(all.tokens[0].text_offset, 0);
  EXPECT_EQ(all.tokens[before].text_offset, 2);
}

TEST(TextAnswerTest, TheEchoIsNotSearchedForStops) {
  TextAnswerOptions options;
  options.stops = {"b"};
  options.echo = true;
  options.with_tokens = true;
  TextAnswer answer(TestTokenizer(), options);
  AnswerPiece echo;
  for (const TokenId id : Ids("a b c")) {
    AnswerPiece piece = answer.PushPrompt({id, std::nullopt});
    echo.content += piece.content;
    for (auto& token : piece.tokens) echo.tokens.push_back(std::move(token));
  }
  EXPECT_EQ(echo.content, "a b c");
  EXPECT_EQ(TextOf(echo.tokens), "a b c");
  const AnswerPiece all = Show(&answer, Ids(" d b e"));
  EXPECT_EQ(all.content, " d ");
  ASSERT_FALSE(all.tokens.empty());
  EXPECT_EQ(all.tokens[0].text_offset, 5);
  EXPECT_TRUE(answer.is_enough());
}

TEST(TextAnswerTest, HalfACharacterComesOutAtTheEnd) {
  TextAnswer answer(TestTokenizer(), {});
  std::vector<TokenId> ids = Ids("\xf0\x9f\x98\x80");
  ASSERT_GT(ids.size(), 1u);
  ids.pop_back();
  EXPECT_EQ(Show(&answer, ids).content, "\xef\xbf\xbd");
}

}  // namespace
}  // namespace deltafin
