#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "chat_elements.h"
#include "deltafin/chat.h"
#include "deltafin/json.h"
#include "text/byte_tokenizer.h"
#include "text/chat_markup.h"

namespace deltafin {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;
using testing::Not;

struct Parsed {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;   // name and arguments
  std::vector<std::pair<std::string, std::string>> pieces;  // the same, put together
  bool ended = false;
};

void Add(const ChatDelta& delta, Parsed* parsed) {
  parsed->reasoning += delta.reasoning;
  parsed->content += delta.content;
  for (const ToolCallPiece& piece : delta.call_pieces) {
    if (!piece.name.empty()) parsed->pieces.resize(static_cast<size_t>(piece.index));
    if (!piece.name.empty()) parsed->pieces.emplace_back(piece.name, "");
    ASSERT_EQ(piece.index + 1, static_cast<int>(parsed->pieces.size()));
    parsed->pieces.back().second += piece.arguments;
  }
  for (const ToolCall& call : delta.finished_calls) {
    EXPECT_EQ(call.index, static_cast<int>(parsed->calls.size()));
    parsed->calls.emplace_back(call.name, call.arguments);
    // The tag that ended it may have opened the next one.
    ASSERT_GE(parsed->pieces.size(), parsed->calls.size());
    const auto& [name, arguments] = parsed->pieces[static_cast<size_t>(call.index)];
    EXPECT_EQ(name, call.name);
    // Keys that come twice do so in the pieces only; readers of JSON take the last.
    if (arguments != call.arguments) {
      EXPECT_EQ(ParseJson(arguments, "pieces"), ParseJson(call.arguments, "arguments"));
    }
  }
}

Parsed ParseIds(const std::vector<TokenId>& ids, bool thinking, bool finish = true) {
  const ByteTokenizer tokenizer;
  const auto parser = ChatParser::Create(tokenizer, thinking);
  Parsed parsed;
  for (const TokenId id : ids) Add(parser->Push(id), &parsed);
  parsed.ended = parser->message_ended();
  if (finish) Add(parser->Finish(), &parsed);
  return parsed;
}

// Every spelling of a control token in `text` is the token.
Parsed Parse(const std::string& text, bool thinking = true, bool finish = true) {
  return ParseIds(ByteTokenizer().Encode(text, Specials::kAllowed), thinking, finish);
}

// The arguments of one call `f` with `inner`, which must be all of the output.
std::string ArgumentsOf(const std::string& inner) {
  const Parsed parsed =
      Parse(Element("tools", Element("call tool=\"f\" index=\"1\"", inner)), false);
  EXPECT_EQ(parsed.content, "");
  EXPECT_EQ(parsed.calls.size(), 1u);
  return parsed.calls.empty() ? "" : parsed.calls[0].second;
}

TEST(ChatParserTest, ACallComesInPieces) {
  const ByteTokenizer tokenizer;
  const auto parser = ChatParser::Create(tokenizer, false);
  const auto push = [&](const std::string& text) {
    ChatDelta all;
    for (const TokenId id : tokenizer.Encode(text, Specials::kAllowed)) {
      for (ToolCallPiece& piece : parser->Push(id).call_pieces) {
        all.call_pieces.push_back(std::move(piece));
      }
    }
    std::string pieces;
    for (const ToolCallPiece& piece : all.call_pieces) {
      pieces += std::to_string(piece.index) + piece.name + "|" + piece.arguments + ";";
    }
    return pieces;
  };
  EXPECT_EQ(push(Open("tools") + Open("call tool=\"f\" index=\"1\"")), "0f|;");
  EXPECT_EQ(push(Open("argument key=\"a\" type=\"string\"")), "0|{\"a\": \";");
  EXPECT_EQ(push("x\"\n"), "0|x;0|\\\";0|\\n;");
  EXPECT_EQ(push(Close("argument")), "0|\";");
  // A value that may turn out to be no JSON comes when it is complete.
  EXPECT_EQ(push(Open("argument key=\"b\" type=\"number\"") + "12"), "0|, \"b\": ;");
  EXPECT_EQ(push(Close("argument")), "0|12;");
  EXPECT_EQ(push(Close("call")), "0|};");
  EXPECT_EQ(push(Open("call tool=\"g\" index=\"2\"") + Close("call")), "1g|;1|{};");
}

TEST(ChatParserTest, SplitsAWholeMessage) {
  const Parsed parsed =
      Parse("Let me think." + Close("think") + Element("response", "The answer\n") +
            Element("tools", Element("call tool=\"a &amp; &quot;b&quot;\" index=\"1\"",
                                     Argument("x", "string", "1") + Argument("y", "number", "2")) +
                                 Element("call tool=\"c\" index=\"2\"", "")) +
            Close("message") + "<|end_of_msg|>");
  EXPECT_EQ(parsed.reasoning, "Let me think.");
  EXPECT_EQ(parsed.content, "The answer\n");
  ASSERT_EQ(parsed.calls.size(), 2u);
  EXPECT_EQ(parsed.calls[0].first, "a & \"b\"");
  EXPECT_EQ(parsed.calls[0].second, "{\"x\": \"1\", \"y\": 2}");
  EXPECT_EQ(parsed.calls[1], std::make_pair(std::string("c"), std::string("{}")));
  EXPECT_TRUE(parsed.ended);
}

TEST(ChatParserTest, ToleratesARepeatedOpening) {
  EXPECT_EQ(Parse(Open("think") + "r" + Close("think") + Element("response", "c")).reasoning, "r");
  EXPECT_EQ(Parse(Open("response") + "c" + Close("response"), false).content, "c");
  const Parsed both =
      Parse(Open("message role=\"assistant\"") + Element("think", "r") + Element("response", "c"));
  EXPECT_EQ(both.reasoning, "r");
  EXPECT_EQ(both.content, "c");
}

TEST(ChatParserTest, TheMessageEnds) {
  EXPECT_FALSE(Parse("abc").ended);
  EXPECT_FALSE(Parse("abc" + Close("think") + Element("response", "x")).ended);
  for (const std::string& end :
       {std::string("<|end_of_msg|>"), Close("message"), Open("message role=\"user\"")}) {
    const Parsed parsed = Parse("c" + end + "more" + Open("response") + "more", false);
    EXPECT_TRUE(parsed.ended) << end;
    EXPECT_EQ(parsed.content, "c") << end;
  }
  const Parsed only_reasoning = Parse("abc<|end_of_msg|>");
  EXPECT_EQ(only_reasoning.reasoning, "abc");
  EXPECT_EQ(only_reasoning.content, "");
}

TEST(ChatParserTest, NothingIsHeldBackButTheTag) {
  const ByteTokenizer tokenizer;
  const auto parser = ChatParser::Create(tokenizer, true);
  EXPECT_EQ(parser->Push('a').reasoning, "a");
  EXPECT_TRUE(parser->Push(tokenizer.SpecialId("<|close|>")).empty());
  EXPECT_TRUE(parser->Push('t').empty());
  EXPECT_EQ(parser->Push('x').reasoning, "<|close|>tx");  // no tag begins like this
  EXPECT_EQ(parser->Push('y').reasoning, "y");
}

TEST(ChatParserTest, SpelledMarkersAreText) {
  const ByteTokenizer tokenizer;
  const std::string text = "a<|close|>think<|sep|><|open|>response<|sep|>b<|end_of_msg|>[EOS]";
  EXPECT_EQ(ParseIds(tokenizer.Encode(text, Specials::kPlain), true).reasoning, text);
  EXPECT_EQ(ParseIds(tokenizer.Encode(text, Specials::kPlain), false).content, text);
}

TEST(ChatParserTest, LookAlikesComeOutVerbatim) {
  for (const std::string& text :
       {std::string("<|open|>"), std::string("<|open|><|sep|>"), std::string("<|sep|>"),
        Open("div"), Close("thinking"), Open(" think"), Open("call tool=x"), Open("call tool=\"x"),
        std::string("<|open|><|open|><|close|>"), std::string("<|close|> the door"),
        std::string("<|open|>think about it"),
        "<|open|>call tool=\"" + std::string(9000, 'x') + "\"", std::string("<|close|>thi\n")}) {
    EXPECT_EQ(Parse("a" + text + "<|sep|> b" + Close("response"), false).content,
              "a" + text + "<|sep|> b")
        << text;
    EXPECT_EQ(
        ArgumentsOf(Argument("k", "string", text + "<|sep|>")), "{\"k\": \"" +
                                                                    [&] {
                                                                      std::string quoted;
                                                                      for (const char c : text) {
                                                                        if (c == '"')
                                                                          quoted += '\\';
                                                                        c == '\n' ? quoted += "\\n"
                                                                                  : quoted += c;
                                                                      }
                                                                      return quoted;
                                                                    }() +
                                                                    "<|sep|>\"}")
        << text;
  }
}

TEST(ChatParserTest, ATagMayLackItsSeparator) {
  const Parsed parsed =
      Parse("r<|close|>think<|open|>response<|sep|>c<|close|>response<|end_of_msg|>");
  EXPECT_EQ(parsed.reasoning, "r");
  EXPECT_EQ(parsed.content, "c");
  EXPECT_TRUE(parsed.ended);
}

TEST(ChatParserTest, ACutTagIsNotText) {
  for (const char* cut : {"<|close|>", "<|close|>thi", "<|close|>think", "<|open|>call tool=\"x"}) {
    EXPECT_EQ(Parse(std::string("abc") + cut).reasoning, "abc") << cut;
  }
}

TEST(ChatParserTest, OtherSpecialTokensAreNotText) {
  const Parsed parsed =
      Parse("[BOS]a[EOS]b<|close|>th[EOS]ink<|sep|>" + Open("response") + "c[EOS]");
  EXPECT_EQ(parsed.reasoning, "ab");
  EXPECT_EQ(parsed.content, "c");
}

TEST(ChatParserTest, CharactersStayWhole) {
  const std::string text = "héllo 你好 👋🏽";
  const ByteTokenizer tokenizer;
  for (const bool thinking : {true, false}) {
    const auto parser = ChatParser::Create(tokenizer, thinking);
    std::string out;
    for (const TokenId id : tokenizer.Encode(text, Specials::kPlain)) {
      const ChatDelta delta = parser->Push(id);
      const std::string piece = delta.reasoning + delta.content;
      if (!piece.empty()) {
        EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xc0, 0x80);
      }
      out += piece;
    }
    EXPECT_EQ(out, text);
    EXPECT_TRUE(parser->Finish().empty());
  }
  EXPECT_EQ(Parse("a\xe4\xbd").reasoning, "a\ufffd");
  // A marker in the middle of a character: the half belongs to what it began in.
  const Parsed cut = Parse("a\xe4\xbd" + Close("think") + Open("response") + "\xa0z");
  EXPECT_EQ(cut.reasoning, "a\ufffd");
  EXPECT_EQ(cut.content, "\ufffdz");
  EXPECT_EQ(Parse(Element("call tool=\"\xff\"", Argument("\xe4", "string", "\xc3"))).calls[0],
            std::make_pair(std::string("\ufffd"), std::string("{\"\ufffd\": \"\ufffd\"}")));
}

TEST(ChatParserTest, TextBetweenElements) {
  // White space there means nothing; anything else is an answer whose opening was forgotten.
  const Parsed parsed =
      Parse("r"s + Close("think") + "\n\n" + Element("response", "c") + " \n" +
            Element("tools", "\n"s + Element("call tool=\"f\"",
                                             "\n"s + Argument("k", "null", "null") + "\n")));
  EXPECT_EQ(parsed.content, "c");
  ASSERT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parsed.calls[0].second, "{\"k\": null}");
  EXPECT_EQ(Parse("r"s + Close("think") + "\nAn answer.\n").content, "An answer.\n");
}

TEST(ChatParserTest, MissingTags) {
  const Parsed no_close = Parse("r"s + Open("response") + "c" + Close("message"));
  EXPECT_EQ(no_close.reasoning, "r");
  EXPECT_EQ(no_close.content, "c");
  const Parsed no_tools = Parse("c"s + Element("call tool=\"f\"", ""), false);
  EXPECT_EQ(no_tools.content, "c");
  EXPECT_EQ(no_tools.calls.size(), 1u);
  // An outer tag closes what is open inside.
  for (const std::string& end : {Close("call"), Close("tools"), Close("message"),
                                 Open("call tool=\"g\"") + Close("tools")}) {
    const Parsed parsed = Parse(Open("tools") + Open("call tool=\"f\"") +
                                    Open("argument key=\"k\" type=\"string\"") + "v" + end,
                                false);
    ASSERT_GE(parsed.calls.size(), 1u) << end;
    EXPECT_EQ(parsed.calls[0].second, "{\"k\": \"v\"}") << end;
  }
  EXPECT_EQ(
      ArgumentsOf(Open("argument key=\"a\" type=\"number\"") + "1" + Argument("b", "number", "2")),
      "{\"a\": 1, \"b\": 2}");
}

TEST(ChatParserTest, AnIncompleteCallIsDropped) {
  for (const std::string& end : {std::string(), std::string("<|end_of_msg|>")}) {
    const Parsed parsed =
        Parse(Open("tools") + Element("call tool=\"f\"", "") + Open("call tool=\"g\"") +
                  Open("argument key=\"command\" type=\"string\"") + "rm -rf /" + end,
              false);
    ASSERT_EQ(parsed.calls.size(), 1u);
    EXPECT_EQ(parsed.calls[0].first, "f");
    EXPECT_EQ(parsed.content, "");
  }
}

TEST(ChatParserTest, ACutMessageIsClosedAsTheModelWouldHave) {
  const ByteTokenizer tokenizer;
  const std::string end = Close("message") + "<|end_of_msg|>";
  const std::string call = Open("tools") + Open("call tool=\"f\" index=\"1\"");
  const std::string value = Open("argument key=\"k\" type=\"string\"");
  const std::tuple<std::string, bool, std::string> cases[] = {
      {"", true, Close("think") + Element("response", "") + end},
      {"abc", true, Close("think") + Element("response", "") + end},
      {"abc" + Close("think"), true, Element("response", "") + end},
      {Close("think") + Open("response") + "x", true, Close("response") + end},
      {"x", false, Close("response") + end},
      {"x" + Close("response"), false, end},
      {"x" + Close("response") + "<|close|>message", false, "<|sep|><|end_of_msg|>"},
      {"x" + Close("response") + Close("message"), false, "<|end_of_msg|>"},
      {"x" + Close("response") + end, false, ""},
      {"<|close|>respo", false, "<|sep|>" + Close("response") + end},
      {Close("response") + call, false, Close("call") + Close("tools") + end},
      {Close("response") + call + value + "v", false,
       Close("argument") + Close("call") + Close("tools") + end},
      {Close("response") + call + Open("json") + "{", false,
       Close("json") + Close("call") + Close("tools") + end},
  };
  for (const auto& [text, thinking, expected] : cases) {
    const auto parser = ChatParser::Create(tokenizer, thinking);
    for (TokenId id : tokenizer.Encode(text, Specials::kAllowed)) (void)parser->Push(id);
    EXPECT_EQ(tokenizer.Decode(parser->CloseMessage()), expected) << text;
    EXPECT_TRUE(parser->message_ended()) << text;
    EXPECT_TRUE(parser->CloseMessage().empty()) << text;
  }
}

TEST(ChatParserTest, ArgumentValues) {
  EXPECT_EQ(ArgumentsOf(Argument("k", "string", " \"a\\b\"\n<é>&amp; ")),
            "{\"k\": \" \\\"a\\\\b\\\"\\n<é>&amp; \"}");
  EXPECT_EQ(ArgumentsOf(Argument("k", "string", "")), "{\"k\": \"\"}");
  EXPECT_EQ(ArgumentsOf(Argument("k", "object", " {\"a\":[1, 12345678901234567890123.50]}\n")),
            "{\"k\": {\"a\":[1, 12345678901234567890123.50]}}");
  EXPECT_EQ(ArgumentsOf(Argument("k", "boolean", "false")), "{\"k\": false}");
  // Not JSON: kept as a string.
  EXPECT_EQ(ArgumentsOf(Argument("k", "boolean", "True")), "{\"k\": \"True\"}");
  EXPECT_EQ(ArgumentsOf(Argument("k", "object", "{\"a\": ")), "{\"k\": \"{\\\"a\\\": \"}");
  EXPECT_EQ(ArgumentsOf(Argument("k", "number", "")), "{\"k\": \"\"}");
  // Without a type: JSON when it is JSON.
  EXPECT_EQ(ArgumentsOf(Element("argument key=\"k\"", "3")), "{\"k\": 3}");
  EXPECT_EQ(ArgumentsOf(Element("argument key=\"k\"", "ls -la")), "{\"k\": \"ls -la\"}");
  // The last of equal keys counts.
  EXPECT_EQ(ArgumentsOf(Argument("a", "number", "1") + Argument("b", "number", "2") +
                        Argument("a", "number", "3")),
            "{\"a\": 3, \"b\": 2}");
  // Only the tags of calls mean something inside a value.
  EXPECT_EQ(ArgumentsOf(Argument("k", "string", Element("think", "x") + Close("response"))),
            "{\"k\": \"<|open|>think<|sep|>x<|close|>think<|sep|><|close|>response<|sep|>\"}");
}

TEST(ChatParserTest, RawArguments) {
  EXPECT_EQ(ArgumentsOf(Element("json type=\"object\"", "{\"a\": tru")), "{\"a\": tru");
  EXPECT_EQ(ArgumentsOf(Element("json type=\"object\"", "{\"a\": 1}")), "{\"a\": 1}");
  EXPECT_EQ(ArgumentsOf(Element("json type=\"object\"", " ")), "{}");
  EXPECT_EQ(ArgumentsOf("{\"a\": 1}"), "{\"a\": 1}");  // without any element
  EXPECT_EQ(ArgumentsOf(Element("argument type=\"object\"", "{\"a\": 1}")), "{\"a\": 1}");
  const Parsed mixed =
      Parse(Element("call tool=\"f\"", "why? " + Argument("k", "number", "1") + "because"), false);
  EXPECT_EQ(mixed.calls[0].second, "{\"k\": 1}");
  EXPECT_EQ(mixed.content, "why? because");
}

TEST(ChatParserTest, ACallWithoutANameIsText) {
  const Parsed parsed = Parse(Element("call index=\"1\"", Argument("k", "string", "value")), false);
  EXPECT_TRUE(parsed.calls.empty());
  EXPECT_EQ(parsed.content, "value");
  EXPECT_EQ(Parse(Argument("k", "string", "value") + Close("call"), false).content, "value");
}

TEST(ChatParserTest, NothingComesAfterFinish) {
  const ByteTokenizer tokenizer;
  const auto parser = ChatParser::Create(tokenizer, false);
  parser->Push('a');
  parser->Finish();
  EXPECT_TRUE(parser->Push('b').empty());
  EXPECT_TRUE(parser->Finish().empty());
  EXPECT_FALSE(parser->message_ended());
}

// Any order of well-formed tags and words: every word comes out once, and no tag does.
TEST(ChatParserTest, TextIsNeverLostAndTagsNeverLeak) {
  const ByteTokenizer tokenizer;
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    std::vector<std::string> words;
    for (int i = 0; i < 25; ++i) {
      const std::string n = std::to_string(i);
      const std::string tags[] = {Open("think"),
                                  Close("think"),
                                  Open("response"),
                                  Close("response"),
                                  Open("tools"),
                                  Close("tools"),
                                  Open("call tool=\"f" + n + "\""),
                                  Open("call"),
                                  Close("call"),
                                  Open("argument key=\"k" + n + "\" type=\"string\""),
                                  Open("argument key=\"k" + n + "\" type=\"number\""),
                                  Open("argument"),
                                  Close("argument"),
                                  Close("json"),
                                  Open("message role=\"assistant\"")};
      text += tags[random() % std::size(tags)];
      if (random() % 2 == 0) text += words.emplace_back("(" + n + "é)");
    }
    const Parsed parsed = Parse(text + Close("call"), random() % 2 == 0);
    std::string all = parsed.reasoning + parsed.content;
    EXPECT_THAT(parsed.reasoning, Not(HasSubstr("<|"))) << text;
    if (text.find("<|open|>call<|sep|>") == std::string::npos &&
        text.find("<|open|>argument<|sep|>") == std::string::npos) {
      EXPECT_THAT(parsed.content, Not(HasSubstr("<|"))) << text;
    }
    for (const auto& [name, arguments] : parsed.calls) all += arguments;
    for (const std::string& word : words) {
      const size_t at = all.find(word);
      ASSERT_NE(at, std::string::npos) << word << " of " << text;
      EXPECT_EQ(all.find(word, at + 1), std::string::npos) << word << " of " << text;
    }
  }
}

TEST(ChatParserTest, RandomIdsAreParsedAndGiveUtf8) {
  const ByteTokenizer tokenizer;
  std::mt19937 random(4);
  const std::string letters = "think response tools call argument json message key=\"\" type tool";
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 200; ++i) {
      switch (random() % 4) {
        case 0:
          ids.push_back(static_cast<TokenId>(random() % tokenizer.vocab_size()));
          break;
        case 1: {
          const std::string tags[] = {Open("think"),
                                      Close("argument"),
                                      Open("call tool=\"f\""),
                                      Open("argument key=\"a\""),
                                      Open("json type=\"object\""),
                                      Close("response"),
                                      "<|open|>tools"};
          for (const TokenId id :
               tokenizer.Encode(tags[random() % std::size(tags)], Specials::kAllowed)) {
            ids.push_back(id);
          }
          break;
        }
        default:
          ids.push_back(letters[random() % letters.size()]);
      }
    }
    const Parsed parsed = ParseIds(ids, random() % 2 == 0);
    std::string all = parsed.reasoning + "\n" + parsed.content;
    for (const auto& [name, arguments] : parsed.calls) all += name + arguments;
    StreamDecoder decoder;
    EXPECT_EQ(decoder.Push(all) + decoder.Finish(), all);  // it was UTF-8 already
  }
}

}  // namespace
}  // namespace deltafin
