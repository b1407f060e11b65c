// The written checkpoints have the release's layout, load into the reference, and are good test
// material: sane activations, no router near ties, options that really act.
#include "reference/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "reference/comparison.h"
#include "reference/odd_checkpoints.h"
#include "reference/reference_model.h"

namespace deltafin::reference {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

nlohmann::ordered_json ReadHeader(const std::string& path) {
  const std::string file = ReadFile(path);
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(file.at(i));
  return nlohmann::ordered_json::parse(file.substr(8, size));
}

std::vector<StepResult> WriteAndRun(const CheckpointOptions& options, NamedTensors* trace) {
  const TemporaryFolder folder;
  WriteCheckpoint(options, folder.path());
  const Weights weights = LoadWeights(folder.path());
  return RunTokens(weights, RandomTokens(options, kOddTokens), trace);
}

std::vector<Vec> Logits(const std::vector<StepResult>& steps) {
  std::vector<Vec> rows;
  for (const StepResult& step : steps) rows.push_back(step.logits);
  return rows;
}

TEST(CheckpointWriter, ShardsAreContiguousAndExpertsInDecimalStringOrder) {
  const TemporaryFolder folder;
  WriteCheckpoint(CheckpointOptions(), folder.path());
  const auto header = ReadHeader(folder.path() + "/model-00002-of-000006.safetensors");
  uint64_t end = 0;
  std::vector<std::string> experts;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry.at("data_offsets").at(0), end) << name;
    end = entry.at("data_offsets").at(1);
    const size_t at = name.find("experts.");
    if (entry.at("dtype") == "U8") experts.push_back(name.substr(at + 8));
  }
  ASSERT_EQ(experts.size(), 16U * 6);
  const std::vector<std::string> first = {
      "0.w1.weight_packed", "0.w1.weight_scale", "0.w2.weight_packed", "0.w2.weight_scale",
      "0.w3.weight_packed", "0.w3.weight_scale", "1.w1.weight_packed"};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), experts.begin()));
  EXPECT_EQ(experts[12], "10.w1.weight_packed");
  EXPECT_EQ(experts[6 * 8], "2.w1.weight_packed");
}

TEST(CheckpointWriter, IndexNamesEveryTensorAndItsShard) {
  const TemporaryFolder folder;
  const CheckpointOptions options;
  WriteCheckpoint(options, folder.path());
  const auto index =
      nlohmann::json::parse(ReadFile(folder.path() + "/model.safetensors.index.json"));
  size_t tensors = 0;
  uint64_t bytes = 0;
  for (int shard = 1; shard <= options.num_layers + 1; ++shard) {
    const std::string name = "model-0000" + std::to_string(shard) + "-of-000006.safetensors";
    for (const auto& [tensor, entry] : ReadSafetensors(folder.path() + "/" + name)) {
      EXPECT_EQ(index.at("weight_map").at(tensor), name);
      bytes += entry.bytes.size();
      ++tensors;
    }
  }
  EXPECT_EQ(index.at("weight_map").size(), tensors);
  EXPECT_EQ(index.at("metadata").at("total_size"), bytes);
}

TEST(CheckpointWriter, SameOptionsGiveTheSameBytes) {
  const TemporaryFolder a, b, c;
  CheckpointOptions options;
  WriteCheckpoint(options, a.path());
  WriteCheckpoint(options, b.path());
  options.seed = 2;
  WriteCheckpoint(options, c.path());
  const std::string shard = "/model-00003-of-000006.safetensors";
  EXPECT_EQ(ReadFile(a.path() + shard), ReadFile(b.path() + shard));
  EXPECT_NE(ReadFile(a.path() + shard), ReadFile(c.path() + shard));
}

// FNV-1a of a shard: a change of the generator, or a platform that computes it differently, shows.
TEST(CheckpointWriter, BytesAreThoseOfEveryPlatform) {
  const TemporaryFolder folder;
  WriteCheckpoint(CheckpointOptions(), folder.path());
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : ReadFile(folder.path() + "/model-00002-of-000006.safetensors")) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3U;
  }
  EXPECT_EQ(hash, 12169565436657700069U);
}

TEST(CheckpointWriter, ALogIsPaddedOnlyWhenHeadsAreFewer) {
  const auto size_of = [](const CheckpointOptions& options) {
    const TemporaryFolder folder;
    WriteCheckpoint(options, folder.path());
    char name[64];
    std::snprintf(name, sizeof(name), "/model-00001-of-%06d.safetensors",
                  static_cast<int>(options.num_layers + 1));
    return ReadSafetensors(folder.path() + name)
        .at("language_model.model.layers.0.self_attn.A_log")
        .ToDoubles();
  };
  CheckpointOptions options;
  options.kda_heads = 3;
  options.kda_head_dim = 8;
  const Vec padded = size_of(options);
  ASSERT_EQ(padded.size(), 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(padded[i] == 0, i >= 3);
  options.a_log_size = ALogSize::kHeads;
  EXPECT_EQ(size_of(options).size(), 3U);
  options.a_log_size = ALogSize::kPadded;
  options.kda_heads = 10;
  EXPECT_EQ(size_of(options).size(), 10U);
}

TEST(OddCheckpoints, AreSaneAndFreeOfRouterNearTies) {
  for (const OddCheckpoint& odd : OddCheckpoints()) {
    SCOPED_TRACE(odd.name);
    NamedTensors trace;
    const auto steps = WriteAndRun(odd.options, &trace);
    double margin = std::numeric_limits<double>::infinity();
    for (const StepResult& step : steps) margin = std::min(margin, step.MinRouterMargin());
    const double std_dev = StandardDeviation(Logits(steps));
    double largest = 0;
    for (const auto& [name, values] : trace) {
      for (const double value : values) largest = std::max(largest, std::abs(value));
    }
    std::printf("%-20s logit std %.3f, largest activation %.1f, smallest router margin %.1e\n",
                odd.name.c_str(), std_dev, largest, margin);
    EXPECT_GT(margin, 10 * kRouterNearTie);
    EXPECT_GT(std_dev, 0.5);
    EXPECT_LT(std_dev, 5);
    EXPECT_LT(largest, 100);
  }
}

void FillALog(Weights& weights, double value) {
  Vec& a_log = weights.layers.front().kda.value().a_log;
  std::fill(a_log.begin(), a_log.end(), value);
}

// As if expert n were the n-th span of its layer.
void ReadExpertsInFileOrder(Weights& weights) {
  for (LayerWeights& layer : weights.layers) {
    if (!layer.moe) continue;
    std::map<std::string, Mlp> by_name;
    for (size_t i = 0; i < layer.moe->experts.size(); ++i) {
      by_name[std::to_string(i)] = layer.moe->experts[i];
    }
    size_t rank = 0;
    for (const auto& [name, expert] : by_name) layer.moe->experts[rank++] = expert;
  }
}

// What a wrong reading would move, in logit standard deviations: each must be far
// above the 4e-4 that engine_reference_test.cc allows.
TEST(OddCheckpoints, MistakesShow) {
  const auto odd_named = [](const std::string& name) {
    for (OddCheckpoint& odd : OddCheckpoints()) {
      if (odd.name == name) return odd.options;
    }
    throw std::out_of_range(name);
  };
  struct Mistake {
    std::string checkpoint;
    std::string what;
    void (*make)(Weights&);
  };
  const std::vector<Mistake> mistakes = {
      {"FewWideHeads", "A_log of the first layer", [](Weights& w) { FillALog(w, 0.0); }},
      {"EveryLayerABlock", "A_log of the first layer", [](Weights& w) { FillALog(w, 0.0); }},
      {"ManyExperts", "experts in the order of the file", ReadExpertsInFileOrder},
      {"FewWideHeads", "block of sublayers", [](Weights& w) { w.config.attn_res_block_size = 1; }},
      {"EveryLayerABlock", "block", [](Weights& w) { w.config.attn_res_block_size = 2; }},
      {"MlaFirst", "lower bound", [](Weights& w) { w.config.gate_lower_bound = -5; }},
      {"MlaFirst", "eps", [](Weights& w) { w.config.rms_norm_eps = 1e-5; }},
      {"MlaFirst", "beta", [](Weights& w) { w.config.situ_beta = 4; }},
      {"MlaFirst", "linear beta", [](Weights& w) { w.config.situ_linear_beta = 25; }},
      {"UnnormalisedRouter", "renormalise", [](Weights& w) { w.config.moe_renormalize = true; }},
      {"UnnormalisedRouter", "scaling", [](Weights& w) { w.config.routed_scaling_factor = 1; }},
      {"ScaledRouter", "scaling", [](Weights& w) { w.config.routed_scaling_factor = 1; }},
      {"ScaledRouter", "linear beta null", [](Weights& w) { w.config.situ_linear_beta = 1; }},
      {"TopOne", "beta null", [](Weights& w) { w.config.situ_beta = 4; }},
      {"TopOne", "linear beta", [](Weights& w) { w.config.situ_linear_beta = std::nullopt; }},
  };
  for (const Mistake& mistake : mistakes) {
    const CheckpointOptions options = odd_named(mistake.checkpoint);
    const TemporaryFolder folder;
    WriteCheckpoint(options, folder.path());
    Weights weights = LoadWeights(folder.path());
    const auto tokens = RandomTokens(options, 10);
    const auto right = Logits(RunTokens(weights, tokens));
    mistake.make(weights);
    const auto wrong = Logits(RunTokens(weights, tokens));
    double moved = 0;
    for (size_t pos = 0; pos < right.size(); ++pos) {
      for (size_t i = 0; i < right[pos].size(); ++i) {
        moved = std::max(moved, std::abs(right[pos][i] - wrong[pos][i]));
      }
    }
    EXPECT_GT(moved / StandardDeviation(right), 0.05) << mistake.checkpoint << ": " << mistake.what;
  }
}

}  // namespace
}  // namespace deltafin::reference
