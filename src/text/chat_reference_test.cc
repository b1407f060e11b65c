// The chat format with real vocabularies: reference prompts, the worked examples of spec 6.5, and
// what must hold for any text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "deltafin/chat.h"
#include "shared_data.h"
#include "text/chat_markup.h"
#include "text/python_json.h"

namespace deltafin {
namespace {

using Ids = std::vector<TokenId>;

const Tokenizer& Nano() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(NanoDir());
  return *tokenizer;
}

Json ReadJson(const std::string& path) {
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return ParseJson(text, path);
}

RenderedChat RenderJson(const Json& request) { return RenderChat(request.dump()); }

Json RequestOf(const Json& conversation) {
  const Json& options = conversation["options"];
  Json request = {{"messages", conversation["messages"]}, {"thinking", options["thinking"]}};
  if (!options["thinking_effort"].is_null()) {
    request["reasoning_effort"] = options["thinking_effort"];
  }
  for (const char* key : {"tools", "tool_choice"}) {
    if (options.contains(key)) request[key] = options[key];
  }
  return request;
}

TEST(ChatReferenceTest, NanoConversations) {
  const Json conversations = ReadJson(DataPath("nano/chat_render.json"));
  ASSERT_EQ(conversations.size(), 15u);
  // The reference writes this one argument without spaces. The released encoder uses Python's
  // default separators (spec 6.4), and so do we.
  const std::string theirs = R"({"b":[1,true,null],"a":"x"})";
  const std::string ours = R"({"b": [1, true, null], "a": "x"})";
  int num_spaced = 0;
  for (const Json& conversation : conversations) {
    const RenderedChat chat = RenderJson(RequestOf(conversation));
    const Json& segments = conversation["segments"];
    ASSERT_EQ(chat.segments.size(), segments.size()) << conversation["rendered"];
    bool is_spaced = false;
    for (size_t i = 0; i < segments.size(); ++i) {
      const std::string text = segments[i][0];
      if (text == theirs) {
        EXPECT_EQ(chat.segments[i].text, ours);
        is_spaced = true;
      } else {
        EXPECT_EQ(chat.segments[i].text, text);
      }
      EXPECT_EQ(chat.segments[i].specials == Specials::kAllowed, segments[i][1].get<bool>())
          << text;
    }
    EXPECT_EQ(chat.thinking, conversation["options"]["thinking"].get<bool>());
    num_spaced += is_spaced;

    RenderedChat same = chat;
    for (Segment& segment : same.segments) {
      if (segment.text == ours) segment.text = theirs;
    }
    EXPECT_EQ(same.Text(), conversation["rendered"].get<std::string>());
    EXPECT_EQ(same.Encode(Nano()), conversation["ids"].get<Ids>()) << conversation["rendered"];
  }
  EXPECT_EQ(num_spaced, 1);
}

TEST(ChatReferenceTest, NanoPrompts) {
  const Json file = ReadJson(DataPath("nano/prompts.json"));
  int num_chats = 0;
  for (const Json& prompt : file.is_array() ? file : file["prompts"]) {
    if (!prompt.contains("messages")) continue;
    ++num_chats;
    EXPECT_EQ(RenderJson(RequestOf(prompt)).Encode(Nano()), prompt["ids"].get<Ids>());
  }
  EXPECT_EQ(num_chats, 9);
}

// ---- spec 6.5 ----

const Ids kEffortMax = {163587, 2778,   6244,   878,    14062,  1,      1798,  878,  130400, 59991,
                        470,    1,      163589, 63,     130400, 123074, 470,   63,   28560,  418,
                        1632,   2455,   308,    2704,   306,    651,    9545,  8491, 347,    2976,
                        3411,   276,    4503,   8491,   904,    9141,   4661,  3867, 1268,   1332,
                        5713,   1268,   50004,  5713,   1268,   19421,  5713,  316,  1268,   5354,
                        16518,  10048,  276,    2403,   387,    42070,  472,   1268, 130400, 123074,
                        470,    105281, 11369,  163588, 2778,   163589, 163586};
const Ids kOpenThink = {163587, 2778, 6244, 878, 69702, 1, 163589, 163587, 39964, 163589};

Ids Join(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(ChatReferenceTest, WorkedExamples) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(dir);
  const auto encode = [&](const SimpleChat& chat) {
    return RenderSimpleChat(chat).Encode(*tokenizer);
  };
  const Ids question = {163587, 2778, 6244, 878, 2482, 1,      163589, 5376,   387,   220,
                        17,     715,  220,  17,  30,   163588, 2778,   163589, 163586};
  EXPECT_EQ(encode({"", "What is 2 + 2?"}), Join({kEffortMax, question, kOpenThink}));  // A

  Ids effort_low;
  for (const TokenId id : kEffortMax) {
    effort_low.push_back(id == 105281 ? 28 : id);
    if (id == 105281) effort_low.push_back(1332);
  }
  EXPECT_EQ(encode({"", "What is 2 + 2?", ReasoningEffort::kLow}),
            Join({effort_low, question, kOpenThink}));

  EXPECT_EQ(
      encode({"", "no thinking", ReasoningEffort::kMax, false}),  // B
      (Ids{163587, 2778,   6244, 878,  2482, 1,     163589, 4069,   9545,   163588, 2778,  163589,
           163586, 163587, 2778, 6244, 878,  69702, 1,      163589, 163587, 12092,  163589}));

  EXPECT_EQ(encode({"You are a helpful assistant.", "Hi!"}),  // C
            Join({kEffortMax,
                  {163587, 2778,  6244, 878,    14062, 1,      163589, 3900,   554,    261,
                   13205,  26626, 13,   163588, 2778,  163589, 163586, 163587, 2778,   6244,
                   878,    2482,  1,    163589, 18699, 0,      163588, 2778,   163589, 163586},
                  kOpenThink}));
}

TEST(ChatReferenceTest, WorkedToolRoundTrip) {  // D
  const RenderedChat chat = RenderChat(R"({
      "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
      "messages": [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "List the files."},
        {"role": "assistant", "reasoning_content": "I should run ls.", "content": "Listing files.",
         "tool_calls": [{"id": "1", "function": {"name": "bash", "arguments": "{\"command\": \"ls -la\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "a.txt\nb.txt\n"}]})");
  const std::string text = chat.Text();
  const std::string expected =
      "<|open|>message role=\"system\"<|sep|>You are a coding agent.<|close|>message<|sep|>"
      "<|end_of_msg|><|open|>message role=\"user\"<|sep|>List the files.<|close|>message<|sep|>"
      "<|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>I should run ls."
      "<|close|>think<|sep|><|open|>response<|sep|>Listing files.<|close|>response<|sep|><|open|>"
      "tools<|sep|><|open|>call tool=\"bash\" index=\"1\"<|sep|><|open|>argument key=\"command\" "
      "type=\"string\"<|sep|>ls "
      "-la<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
      "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"tool\" tool=\"bash\" index=\"1\""
      "<|sep|>a.txt\nb.txt\n<|close|>message<|sep|><|end_of_msg|><|open|>message "
      "role=\"assistant\"<|sep|><|open|>think<|sep|>";
  EXPECT_TRUE(text.ends_with(expected)) << text;
  const std::string before = text.substr(0, text.size() - expected.size());
  const size_t declare = before.find("type=\"tool-declare\"");
  const size_t effort = before.find("type=\"thinking-effort\"");
  EXPECT_LT(declare, effort);
  EXPECT_NE(effort, std::string::npos);

  SHARED_OR_SKIP(dir, "tokenizer");
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(dir);
  const Ids ids = chat.Encode(*tokenizer);
  // The single ids that the spec lists, each as often as its element stands in the text.
  const auto count = [&](TokenId id) { return std::count(ids.begin(), ids.end(), id); };
  EXPECT_EQ(count(163587), count(163588) + 2);  // two elements are open at the end
  EXPECT_EQ(count(39964), 3);                   // think
  EXPECT_EQ(count(25385), 2);                   // tools
  EXPECT_EQ(count(10257), 2);                   // call
  EXPECT_EQ(count(47185), 2);                   // argument
}

// ---- properties ----

class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed) {
    const Tokenizer& tokenizer = Nano();
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.IsSpecial(id)) pieces_.emplace_back(tokenizer.Bytes(id));
    }
    pieces_.insert(pieces_.end(), 60, "");  // of which about half become words
    for (size_t i = pieces_.size() - 60; i < pieces_.size(); ++i) {
      static constexpr const char* kWords[] = {
          "think", "message",  "\"", "&",  "&quot;", " ", "\n", "é",    "你好", "👋",
          "a",     " role=\"", "<|", "|>", "{",      "]", "\\", "open", "42",   "\t"};
      pieces_[i] = kWords[i % std::size(kWords)];
    }
  }

  std::string Next(size_t max_pieces = 8) {
    std::string text;
    for (size_t n = random_() % (max_pieces + 1); n > 0; --n)
      text += pieces_[Below(pieces_.size())];
    return text;
  }
  std::string NextNonEmpty() {
    std::string text = Next();
    return text.empty() ? "x" : text;
  }
  size_t Below(size_t n) { return random_() % n; }

 private:
  std::mt19937 random_;
  std::vector<std::string> pieces_;
};

Json RandomValue(RandomText* random, int depth) {
  switch (random->Below(depth > 0 ? 8 : 6)) {
    case 0:
      return random->Next();
    case 1:
      return static_cast<int64_t>(random->Below(1000)) - 500;
    case 2:
      return static_cast<double>(random->Below(100000)) / 64;
    case 3:
      return random->Below(2) == 0;
    case 4:
      return nullptr;
    case 5:
      return 1e22;
    case 6: {
      Json array = Json::array();
      for (size_t n = random->Below(3); n > 0; --n) array.push_back(RandomValue(random, depth - 1));
      return array;
    }
    default: {
      Json object = Json::object();
      for (size_t n = random->Below(3); n > 0; --n) {
        object[random->Next(2)] = RandomValue(random, depth - 1);
      }
      return object;
    }
  }
}

Json RandomCall(RandomText* random, const std::string& id) {
  Json arguments = Json::object();
  for (size_t n = random->Below(4); n > 0; --n) {
    arguments[random->NextNonEmpty()] = RandomValue(random, 2);
  }
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", random->NextNonEmpty()}, {"arguments", arguments}}}};
}

Json RandomTurn(RandomText* random) {
  Json message = {
      {"role", "assistant"}, {"content", random->Next()}, {"reasoning_content", random->Next()}};
  for (size_t n = random->Below(3), i = 0; i < n; ++i) {
    message["tool_calls"].push_back(RandomCall(random, std::to_string(i)));
  }
  return message;
}

TEST(ChatRenderTest, UserTextIsNeverControl) {
  RandomText random(5);
  const Tokenizer& tokenizer = Nano();
  for (int round = 0; round < 300; ++round) {
    Json request = {{"thinking", random.Below(2) == 0}};
    Json& messages = request["messages"];
    messages = Json::array();
    messages.push_back({{"role", "system"}, {"name", random.Next()}, {"content", random.Next()}});
    messages.push_back(
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", random.Next(30)}}}}});
    messages.push_back(RandomTurn(&random));
    messages.push_back(
        {{"role", "tool"}, {"name", random.NextNonEmpty()}, {"content", random.Next()}});
    messages.push_back({{"role", "system"}, {"tools", {{{random.NextNonEmpty(), random.Next()}}}}});
    request["tools"] = {{{"function", {{"name", random.Next()}, {"description", random.Next()}}}}};
    request["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"schema", {{"title", random.Next()}}}}}};
    const RenderedChat chat = RenderJson(request);

    Ids expected;
    for (const Segment& segment : chat.segments) {
      ASSERT_FALSE(segment.text.empty());
      if (segment.specials == Specials::kAllowed) {
        expected.push_back(tokenizer.SpecialId(segment.text));
      }
    }
    Ids controls;
    for (const TokenId id : chat.Encode(tokenizer)) {
      if (tokenizer.IsSpecial(id)) controls.push_back(id);
    }
    ASSERT_EQ(controls, expected) << request.dump();
    // The structure is well-formed: every tag has its separator, every element its end.
    const auto count = [&](std::string_view mark) {
      return std::count(controls.begin(), controls.end(), tokenizer.SpecialId(mark));
    };
    EXPECT_EQ(count(kOpenMark) + count(kCloseMark), count(kSepMark));
    EXPECT_EQ(count(kOpenMark), count(kCloseMark) + 2);
    EXPECT_EQ(controls.size(), static_cast<size_t>(2 * count(kSepMark) + count(kEndOfMessage)));
  }
}

// What the model wrote, read back token by token, and then rendered as history: the same again.
void ExpectRoundTrip(const Tokenizer& tokenizer, uint32_t seed, int num_rounds) {
  RandomText random(seed);
  for (int round = 0; round < num_rounds; ++round) {
    const bool thinking = random.Below(4) != 0;
    Json request = {{"thinking", thinking},
                    {"messages", {{{"role", "user"}, {"content", random.Next()}}}}};
    const RenderedChat prompt = RenderJson(request);
    const Ids prompt_ids = prompt.Encode(tokenizer);
    const Json turn = RandomTurn(&random);
    request["messages"].push_back(turn);
    const Ids full = RenderJson(request).Encode(tokenizer);
    // The next prompt begins with this one: the state of the session can be used again.
    ASSERT_GT(full.size(), prompt_ids.size());
    ASSERT_TRUE(std::equal(prompt_ids.begin(), prompt_ids.end(), full.begin()));

    const auto parser = ChatParser::Create(tokenizer, thinking);
    Json parsed = {{"role", "assistant"}, {"content", ""}, {"reasoning_content", ""}};
    size_t num_read = prompt_ids.size();
    std::string content, reasoning;
    std::vector<ToolCall> calls;
    const auto add = [&](ChatDelta delta) {
      content += delta.content;
      reasoning += delta.reasoning;
      for (ToolCall& call : delta.finished_calls) calls.push_back(std::move(call));
    };
    while (!parser->message_ended()) add(parser->Push(full.at(num_read++)));
    add(parser->Finish());

    EXPECT_EQ(content, turn["content"].get<std::string>());
    const std::string written = turn["reasoning_content"];
    const bool is_blank = written.find_first_not_of(" \n\t") == std::string::npos;
    EXPECT_EQ(reasoning, thinking && !is_blank ? written : "");
    const Json none = Json::array();
    const Json& expected_calls = turn.contains("tool_calls") ? turn["tool_calls"] : none;
    ASSERT_EQ(calls.size(), expected_calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const Json& function = expected_calls[i]["function"];
      EXPECT_EQ(calls[i].index, static_cast<int>(i));
      EXPECT_EQ(calls[i].name, function["name"].get<std::string>());
      EXPECT_EQ(calls[i].arguments, DumpPython(function["arguments"], JsonStyle::kDefault));
      request["messages"][1]["tool_calls"][i]["function"]["arguments"] = calls[i].arguments;
    }
    EXPECT_EQ(RenderJson(request).Encode(tokenizer), full);
  }
}

TEST(ChatRoundTripTest, NanoVocabulary) { ExpectRoundTrip(Nano(), 6, 300); }

TEST(ChatRoundTripTest, RealVocabulary) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(dir);
  ExpectRoundTrip(*tokenizer, 7, 200);
}

TEST(ChatRoundTripTest, RandomIdsOfTheVocabulary) {
  const Tokenizer& tokenizer = Nano();
  std::mt19937 random(8);
  const TokenId marks[] = {tokenizer.SpecialId(kOpenMark), tokenizer.SpecialId(kCloseMark),
                           tokenizer.SpecialId(kSepMark)};
  for (int round = 0; round < 200; ++round) {
    const auto parser = ChatParser::Create(tokenizer, round % 2 == 0);
    std::string all;
    for (int i = 0; i < 300; ++i) {
      const TokenId id = random() % 5 == 0
                             ? marks[random() % std::size(marks)]
                             : static_cast<TokenId>(random() % tokenizer.vocab_size());
      const ChatDelta delta = parser->Push(id);
      all += delta.reasoning + delta.content;
    }
    const ChatDelta rest = parser->Finish();
    all += rest.reasoning + rest.content;
    StreamDecoder decoder;
    EXPECT_EQ(decoder.Push(all) + decoder.Finish(), all);
  }
}

}  // namespace
}  // namespace deltafin
