#include "deltafin/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "deltafin/error.h"
#include "deltafin/json.h"
#include "io/file.h"
#include "shared_data.h"
#include "text/text_test_util.h"

namespace deltafin {
namespace {

using Ids = std::vector<TokenId>;

Json LoadJson(const std::string& path) {
  return ParseJson(ReadWholeFile(RealFileSystem(), path, 16 << 20), path);
}

ErrorCode CodeOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kCancelled;
}

const Tokenizer& Nano() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(NanoDir());
  return *tokenizer;
}

std::string Repeat(std::string_view unit, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += unit;
  return out;
}

TEST(KimiK3Vocabulary, PublishedCases) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const auto tokenizer = Tokenizer::Load(dir);
  EXPECT_EQ(tokenizer->vocab_size(), 163840);
  const Json cases = LoadJson(DataPath("tokenizer_gold.json"));
  ASSERT_EQ(cases.size(), 19u);
  for (const Json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const auto specials = c.at("allow_special").get<bool>() ? Specials::kAllowed : Specials::kPlain;
    const Ids ids = tokenizer->Encode(text, specials);
    EXPECT_EQ(ids, c.at("ids").get<Ids>()) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
}

TEST(KimiK3Vocabulary, CasesMadeWithTiktoken) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const auto tokenizer = Tokenizer::Load(dir);
  const Json cases = LoadJson(DataPath("tokenizer_cases.json"));
  ASSERT_EQ(cases.size(), 289u);
  for (const Json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const Ids ids = tokenizer->Encode(text, Specials::kPlain);
    EXPECT_EQ(ids, c.at("ids").get<Ids>()) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
}

TEST(KimiK3Vocabulary, SpecialTokens) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const auto tokenizer = Tokenizer::Load(dir);
  const std::vector<std::pair<std::string, TokenId>> named = {
      {"[BOS]", 163584},    {"[EOS]", 163585},         {"<|end_of_msg|>", 163586},
      {"<|open|>", 163587}, {"<|close|>", 163588},     {"<|sep|>", 163589},
      {"[EOT]", 163593},    {"<|media_pad|>", 163605}, {"<osagent_mode>", 163649},
      {"[UNK]", 163838},    {"[PAD]", 163839},         {"<|reserved_token_163592|>", 163592},
  };
  for (const auto& [spelling, id] : named) {
    EXPECT_EQ(tokenizer->SpecialId(spelling), id);
    EXPECT_EQ(tokenizer->Bytes(id), spelling);
    EXPECT_EQ(tokenizer->Encode(spelling, Specials::kAllowed), Ids{id});
    EXPECT_GT(tokenizer->Encode(spelling, Specials::kPlain).size(), 1u);
  }
  EXPECT_EQ(tokenizer->Encode("<|open|>message role=\"user\"<|sep|>", Specials::kAllowed),
            (Ids{163587, 2778, 6244, 878, 2482, 1, 163589}));
}

TEST(KimiK3Vocabulary, EveryTokenIsItsOwnEncodingOrSplits) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const auto tokenizer = Tokenizer::Load(dir);
  for (TokenId id = 0; id < tokenizer->vocab_size() - 256; ++id) {
    const std::string text(tokenizer->Bytes(id));
    if (!IsValidUtf8(text)) continue;
    ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text, Specials::kPlain)), text) << id;
  }
}

TEST(KimiK3Vocabulary, CutsChangeIds) {
  SHARED_OR_SKIP(dir, "tokenizer");
  const auto tokenizer = Tokenizer::Load(dir);
  const auto encode = [&](const std::string& text) {
    return tokenizer->Encode(text, Specials::kAllowed);
  };
  // 25,000 = 195 x 128 + 40: without the cut, tokens of 128 dashes would go on across it.
  const Ids run = encode(std::string(25000, '-'));
  const Ids rest = encode(std::string(1000, '-'));
  Ids both = run;
  both.insert(both.end(), rest.begin(), rest.end());
  EXPECT_EQ(encode(std::string(26000, '-')), both);
  EXPECT_GT(both.size(), (26000u + 127) / 128);
  // A special spelling that a cut divides is no special token.
  EXPECT_EQ(encode(std::string(24992, '-') + "<|open|>").back(), 163587);
  EXPECT_NE(encode(std::string(24993, '-') + "<|open|>").back(), 163587);
}

// Cases with "ids" for specials off and "ids_special" for specials on.
void CheckNanoCases(const std::string& name, size_t num_cases) {
  const Json cases = LoadJson(DataPath(name));
  ASSERT_EQ(cases.size(), num_cases);
  int num_different = 0;
  for (const Json& c : cases) {
    const auto text = c.at("text").get<std::string>();
    const Ids plain = Nano().Encode(text, Specials::kPlain);
    const Ids special = Nano().Encode(text, Specials::kAllowed);
    EXPECT_EQ(plain, c.at("ids").get<Ids>()) << text;
    EXPECT_EQ(special, c.at("ids_special").get<Ids>()) << text;
    EXPECT_EQ(Nano().Decode(plain), text);
    EXPECT_EQ(Nano().Decode(special), text);
    num_different += plain != special;
  }
  EXPECT_GT(num_different, 0);
}

TEST(Tokenizer, NanoCases) { CheckNanoCases("nano/tokenizer_cases.json", 95); }

// Made with tiktoken by scripts/tiktoken_cases.mjs; also characters newer than the Unicode of this
// system's libraries.
TEST(Tokenizer, RandomCasesMadeWithTiktoken) { CheckNanoCases("nano/tokenizer_random.json", 300); }

TEST(Tokenizer, PlainTextNeverBecomesASpecialToken) {
  std::string text;
  for (TokenId id = Nano().vocab_size() - 256; id < Nano().vocab_size(); ++id) {
    text += Nano().Bytes(id);
  }
  for (const TokenId id : Nano().Encode(text, Specials::kPlain)) EXPECT_FALSE(Nano().IsSpecial(id));
  const Ids ids = Nano().Encode(text, Specials::kAllowed);
  ASSERT_EQ(ids.size(), 256u);
  for (const TokenId id : ids) EXPECT_TRUE(Nano().IsSpecial(id));
}

TEST(Tokenizer, AnyUtf8RoundTrips) {
  RandomText random(9);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = random.Below(60); i > 0; --i) {
      AppendUtf8(
          random.Below(2) == 0 ? static_cast<char32_t>(random.Below(128)) : random.AnyScalar(),
          text);
    }
    ASSERT_EQ(Nano().Decode(Nano().Encode(text, Specials::kPlain)), text);
    ASSERT_EQ(Nano().Decode(Nano().Encode(text, Specials::kAllowed)), text);
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(Nano().Decode(Nano().Encode("a\xff"
                                        "b\xe4\xbd",
                                        Specials::kPlain)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  RandomText random(10);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = random.Bytes(random.Below(60));
    ASSERT_EQ(Nano().Decode(Nano().Encode(bytes, Specials::kPlain)), ReplaceInvalidUtf8(bytes));
  }
}

// The texts of a stream's tokens, shown one by one, are the text.
TEST(Tokenizer, StreamOfTokensGivesTheText) {
  const std::string text = "Привет 你好 \U0001f600\U0001f469\u200d\U0001f52c café 漢字 end";
  StreamDecoder decoder;
  std::string shown;
  bool cut_a_character = false;
  for (const TokenId id : Nano().Encode(text, Specials::kPlain)) {
    cut_a_character |= !IsValidUtf8(Nano().Bytes(id));
    const std::string piece = decoder.Push(Nano().Bytes(id));
    EXPECT_TRUE(IsValidUtf8(piece));
    shown += piece;
  }
  EXPECT_TRUE(cut_a_character);
  EXPECT_EQ(shown + decoder.Finish(), text);
}

TEST(Tokenizer, IdsAndSpellingsThatDoNotExist) {
  const TokenId size = Nano().vocab_size();
  EXPECT_EQ(size, 4608);
  for (const TokenId id : {-1, size, size + 1000}) {
    EXPECT_EQ(CodeOf([&] { Nano().Bytes(id); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(CodeOf([&] { Nano().Decode(Ids{1, id}); }), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf([] { Nano().SpecialId("<|nothing|>"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([] { Nano().SpecialId(""); }), ErrorCode::kNotFound);
  EXPECT_EQ(Nano().Encode("", Specials::kAllowed), Ids{});
  EXPECT_EQ(Nano().Decode(Ids{}), "");
}

TEST(Tokenizer, MissingFilesAreNamed) {
  const std::string dir = testing::TempDir() + "no_tokenizer_here";
  std::filesystem::create_directories(dir);
  try {
    Tokenizer::Load(dir);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), testing::HasSubstr(dir + "/tiktoken.model"));
  }
}

// Texts on which a quadratic step anywhere would take minutes; see Bpe.AMillionBytesInOnePiece for
// the bound.
TEST(Tokenizer, MillionsOfBytesOfOneKind) {
  const std::vector<std::string> texts = {
      std::string(1'000'000, 'a'),      std::string(1'000'000, ' '),
      std::string(1'000'000, '<'),      Repeat("!\x1c", 500'000),
      std::string(1'000'000, '\n'),     Repeat("\u0301", 500'000),
      Repeat("A\u02b0", 400'000),       Repeat("\u4f60\u597d", 200'000),
      Repeat("<|reserved_tok", 80'000), Repeat(" \n\t ", 250'000),
      std::string(1'000'000, '\xff'),
  };
  for (const std::string& text : texts) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Nano().Encode(text, Specials::kAllowed);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_LT(elapsed.count(), 60.0) << text.substr(0, 16);
    EXPECT_EQ(Nano().Decode(ids), ReplaceInvalidUtf8(text));
  }
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const std::string text = Repeat("The quick brown fox, 你好 \U0001f600 123456!\n", 500);
  const Ids expected = Nano().Encode(text, Specials::kAllowed);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (Ids& result : results) {
    threads.emplace_back([&] { result = Nano().Encode(text, Specials::kAllowed); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace deltafin
