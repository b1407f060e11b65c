#include "deltafin/quality.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "deltafin/json.h"
#include "deltafin/session.h"
#include "engine/api_logprobs.h"
#include "engine/quality_statistics.h"
#include "shared_data.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

TEST(LogitsRowTest, IsADistribution) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f), -1000};
  const LogitsRow row(logits);
  EXPECT_NEAR(std::exp(row.Logprob(2)), 5.0 / 8, 1e-7);
  EXPECT_NEAR(row.Logprob(3), -1000 - std::log(8), 1e-4);
  EXPECT_EQ(row.likeliest, 2);
  EXPECT_EQ(LogitsRow(std::vector<float>{3, 7, 7}).likeliest, 1);
}

TEST(PredictionScoreTest, AddsUp) {
  const std::vector<float> halves = {0, 0};
  PredictionScore score;
  score.Add(LogitsRow(halves), 0, 1);
  score.Add(LogitsRow(halves), 1, 3);
  QualityReport report;
  score.Fill(&report);
  EXPECT_EQ(report.predictions, 2);
  EXPECT_NEAR(report.mean_nll, std::log(2), 1e-12);
  EXPECT_NEAR(report.perplexity, 2, 1e-12);
  EXPECT_NEAR(report.bits_per_byte, 0.5, 1e-12);  // two bits in four bytes
  EXPECT_EQ(report.top1_accuracy, 0.5);
}

TEST(PredictionDistanceTest, MeasuresDivergenceAndShift) {
  const std::vector<float> even = {0, 0};
  const std::vector<float> skewed = {std::log(3.0f), 0};  // 3/4, 1/4
  PredictionDistance distance;
  distance.Add(5, LogitsRow(even), LogitsRow(skewed), 0);
  distance.Add(6, LogitsRow(even), LogitsRow(even), 0);
  QualityComparison comparison;
  distance.Fill(&comparison);
  const double kl = 0.75 * std::log(1.5) + 0.25 * std::log(0.5);
  EXPECT_EQ(comparison.predictions, 2);
  EXPECT_NEAR(comparison.mean_kl, kl / 2, 1e-7);
  EXPECT_NEAR(comparison.max_kl, kl, 1e-7);
  EXPECT_EQ(comparison.max_kl_position, 5);
  EXPECT_NEAR(comparison.max_shift, std::log(3), 1e-6);
  EXPECT_EQ(comparison.max_shift_position, 5);
  EXPECT_EQ(comparison.top1_agreement, 1);  // of equals the lowest id
  EXPECT_NEAR(comparison.nll_difference, std::log(1.5) / 2, 1e-7);
  EXPECT_NEAR(comparison.nll_difference_error, std::log(1.5) / 2, 1e-7);
  EXPECT_FALSE(comparison.partial);
}

// What is known of a distribution bounds the divergence from below.
TEST(PredictionDistanceTest, PartialReferencesGiveLowerBounds) {
  const std::vector<float> reference = {std::log(4.0f), std::log(3.0f), std::log(2.0f), 0};
  const std::vector<float> measured = {std::log(2.0f), std::log(3.0f), 0, std::log(4.0f)};
  const LogitsRow p(reference);
  const LogitsRow q(measured);
  PredictionDistance full;
  full.Add(0, q, p, 2);
  PredictionDistance partial;
  partial.AddPartial(0, q, {p.Logprob(2), {{0, p.Logprob(0)}}}, 2);
  QualityComparison all;
  QualityComparison some;
  full.Fill(&all);
  partial.Fill(&some);
  EXPECT_TRUE(some.partial);
  EXPECT_GT(some.mean_kl, 0);
  EXPECT_LT(some.mean_kl, all.mean_kl);
  EXPECT_NEAR(some.mean_nll, all.mean_nll, 1e-12);
  EXPECT_NEAR(some.nll_difference, all.nll_difference, 1e-12);
  EXPECT_EQ(some.top1_agreement, 0);
}

class QualityTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(DataPath("nano/nll.json"));
    const std::string json((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    gold_ = ParseJson(json, "nll.json");
    folder_ = testing::TempDir() + "deltafin_quality_test_" + std::to_string(::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    options_.engine.model_dir = NanoDir();
    options_.engine.spine = SpineFormat::kBf16;
    options_.text = gold_["text"].get<std::string>();
    options_.max_tokens = 300;
    options_.scratch_path = (folder_ / "scratch").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  Json gold_;
  fs::path folder_;
  QualityOptions options_;
};

TEST_F(QualityTest, HeldOutTextHasTheLossOfTheOracle) {
  options_.max_tokens = gold_["n_predictions"].get<int64_t>() + 1;
  const QualityReport report = MeasureQuality(options_);
  EXPECT_EQ(report.predictions, gold_["n_predictions"].get<int64_t>());
  EXPECT_EQ(report.tokens, report.predictions + 1);
  EXPECT_EQ(report.windows, 1);
  EXPECT_NEAR(report.mean_nll, gold_["mean_nll"].get<double>(), 5e-4);
  EXPECT_FALSE(report.comparison.has_value());
}

TEST_F(QualityTest, NothingDiffersFromItself) {
  options_.against.engine = options_.engine;
  options_.against.engine->threads = 1;
  const QualityReport report = MeasureQuality(options_);
  ASSERT_TRUE(report.comparison.has_value());
  EXPECT_EQ(report.comparison->predictions, 299);
  EXPECT_EQ(report.comparison->mean_nll, report.mean_nll);
  EXPECT_EQ(report.comparison->max_kl, 0);
  EXPECT_EQ(report.comparison->max_shift, 0);
  EXPECT_EQ(report.comparison->top1_agreement, 1);
  EXPECT_TRUE(fs::is_empty(folder_));  // the scratch file is gone
}

// The reference may take hours.
TEST_F(QualityTest, WhatTheMeasuredRunLacksIsSaidBeforeTheReferenceIsComputed) {
  int64_t passes = 0;
  options_.on_progress = [&](const std::string&, int64_t, int64_t) { ++passes; };
  options_.against.engine = options_.engine;
  options_.logits_path = (folder_ / "absent" / "logits").string();
  EXPECT_THROW(MeasureQuality(options_), Error);
  options_.logits_path.clear();
  options_.engine.threads = 5000;  // cannot be opened
  EXPECT_THROW(MeasureQuality(options_), Error);
  EXPECT_EQ(passes, 0);
}

TEST_F(QualityTest, ARoundedCacheIsFarFromItsReferenceByALittle) {
  options_.against.engine = options_.engine;
  options_.engine.cache_format = CacheFormat::kBf16;
  const QualityReport report = MeasureQuality(options_);
  EXPECT_GT(report.comparison->mean_kl, 0);
  EXPECT_LT(report.comparison->mean_kl, 1e-3);
  EXPECT_GT(report.comparison->max_shift, 0);
  EXPECT_GT(report.comparison->top1_agreement, 0.97);
  EXPECT_NEAR(report.comparison->nll_difference, report.mean_nll - report.comparison->mean_nll,
              1e-9);
}

TEST_F(QualityTest, SavedLogitsAreAReference) {
  options_.logits_path = (folder_ / "logits").string();
  const QualityReport saved = MeasureQuality(options_);
  options_.against.logits_path = options_.logits_path;
  options_.logits_path.clear();
  const QualityReport report = MeasureQuality(options_);
  EXPECT_EQ(report.mean_nll, saved.mean_nll);
  EXPECT_EQ(report.comparison->max_kl, 0);
  EXPECT_EQ(report.comparison->predictions, 299);

  options_.max_tokens = 299;  // other tokens than the file has
  EXPECT_THROW(MeasureQuality(options_), Error);
}

TEST_F(QualityTest, WindowsAreReadByThemselves) {
  options_.engine.context_tokens = 100;
  const QualityReport report = MeasureQuality(options_);
  EXPECT_EQ(report.windows, 3);
  EXPECT_EQ(report.predictions, 297);
  options_.max_tokens = 100;
  const QualityReport first = MeasureQuality(options_);
  EXPECT_EQ(first.predictions, 99);
  EXPECT_GT(std::abs(first.mean_nll - report.mean_nll), 1e-3);
}

TEST_F(QualityTest, CancelsAndRefusesTooLittleText) {
  options_.cancelled = [] { return true; };
  EXPECT_THROW(MeasureQuality(options_), Error);
  options_.cancelled = nullptr;
  options_.engine.context_tokens = 1;  // nothing would be predicted
  EXPECT_THROW(MeasureQuality(options_), Error);
  options_.engine.context_tokens = 0;
  options_.text = "a";
  EXPECT_THROW(MeasureQuality(options_), Error);
}

class ApiLogprobsTest : public testing::Test {
 protected:
  std::vector<std::optional<PositionLogprobs>> Parse(const std::string& json) const {
    return ParseApiLogprobs(json, "answer", *tokenizer_, tokens_);
  }
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Load(NanoDir());
  std::vector<TokenId> tokens_ =
      tokenizer_->Encode("The capital of France is Paris.", Specials::kPlain);
};

TEST_F(ApiLogprobsTest, ReadsBothForms) {
  const std::string last(tokenizer_->Bytes(tokens_.back()));
  const Json chat = {{"choices",
                      {{{"logprobs",
                         {{"content",
                           {{{"token", last},
                             {"logprob", -0.5},
                             {"top_logprobs",
                              {{{"token", "x"}, {"bytes", {last[0]}}, {"logprob", -0.5}},
                               {{"token", "no such token anywhere"}, {"logprob", -3}}}}}}}}}}}}};
  const auto positions = Parse(chat.dump());
  ASSERT_EQ(positions.size(), 1u);
  EXPECT_EQ(positions[0]->chosen, -0.5);
  ASSERT_EQ(positions[0]->top.size(), 1u);
  EXPECT_EQ(positions[0]->top[0].id, tokens_.back());

  Json texts = Json::array();
  Json numbers = Json::array();
  Json tops = Json::array();
  for (TokenId id : tokens_) {
    texts.push_back(std::string(tokenizer_->Bytes(id)));
    numbers.push_back(texts.size() == 1 ? Json() : Json(-1.5));
    tops.push_back(texts.size() == 1 ? Json() : Json{{" the", -1.25}});
  }
  const Json completion = {
      {"choices",
       {{{"logprobs", {{"tokens", texts}, {"token_logprobs", numbers}, {"top_logprobs", tops}}}}}}};
  const auto all = Parse(completion.dump());
  ASSERT_EQ(all.size(), tokens_.size());
  EXPECT_FALSE(all[0].has_value());
  EXPECT_EQ(all[1]->chosen, -1.5);
  EXPECT_EQ(all[1]->top.at(0).logprob, -1.25);
}

TEST_F(ApiLogprobsTest, RefusesOtherFormsAndTokens) {
  for (const char* json :
       {"[]", "{}", R"({"choices":[]})", R"({"choices":[{"logprobs":null}]})",
        R"({"choices":[{"logprobs":{"content":[]}}]})",
        R"({"choices":[{"logprobs":{"content":[{"token":"?","logprob":-1}]}}]})",
        R"({"choices":[{"logprobs":{"content":[{"token":".","logprob":"x"}]}}]})",
        R"({"choices":[{"logprobs":{"tokens":["."],"token_logprobs":[]}}]})",
        R"({"choices":[{"logprobs":{"tokens":[1],"token_logprobs":[-1]}}]})"}) {
    EXPECT_THROW(Parse(json), Error) << json;
  }
}

TEST_F(QualityTest, AnAnswerOfAnApiIsAReference) {
  const auto tokenizer = Tokenizer::Load(NanoDir());
  options_.text = "The capital of France is Paris. The";
  options_.max_tokens = 0;
  const std::vector<TokenId> ids = tokenizer->Encode(options_.text, Specials::kPlain);
  Json content = Json::array();
  for (TokenId id : std::span(ids).last(3)) {
    content.push_back({{"token", std::string(tokenizer->Bytes(id))}, {"logprob", -1.0}});
  }
  const fs::path path = folder_ / "answer.json";
  std::ofstream(path) << Json{{"choices", {{{"logprobs", {{"content", content}}}}}}}.dump();
  options_.against.logprobs_path = path.string();
  const QualityReport report = MeasureQuality(options_);
  EXPECT_EQ(report.comparison->predictions, 3);
  EXPECT_NEAR(report.comparison->mean_nll, 1, 1e-12);
  EXPECT_TRUE(report.comparison->partial);
}

}  // namespace
}  // namespace deltafin
