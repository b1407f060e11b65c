#include "deltafin/trace_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/format.h"
#include "shared_data.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TraceFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return path_;
  }
  std::string WritePairs(const std::vector<int32_t>& pairs) {
    std::string bytes(pairs.size() * sizeof(int32_t), '\0');
    std::memcpy(bytes.data(), pairs.data(), bytes.size());
    return Write(bytes);
  }
  // The message of the refusal, which names the file.
  std::string Refusal(const std::string& bytes) {
    Write(bytes);
    try {
      ReadRouterTrace(path_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
      EXPECT_THAT(e.what(), HasSubstr(path_));
      return e.what();
    }
    return "accepted";
  }

  TempDir dir_;
  const std::string path_ = dir_ / "router_trace.jsonl";
};

TEST_F(TraceFileTest, JsonLinesInAnyOrder) {
  const RouterTrace trace =
      ReadRouterTrace(Write("{\"step\":1,\"layer\":3,\"ids\":[4,2],\"w\":[0.6,0.4]}\n"
                            "\n{\"layer\": 1, \"step\": 0, \"ids\": [9], \"extra\": null}\r\n"
                            "{\"step\":0,\"layer\":3,\"ids\":[4,1]}"));
  EXPECT_EQ(trace.num_steps, 2);
  EXPECT_EQ(trace.num_layers, 4);
  EXPECT_EQ(trace.num_experts, 10);
  ASSERT_EQ(trace.picks.size(), 3u);
  EXPECT_EQ(trace.picks[0].layer, 1);
  EXPECT_THAT(trace.picks[1].ids, ElementsAre(4, 1));
  EXPECT_EQ(trace.picks[2].step, 1);
}

TEST_F(TraceFileTest, LinesAcrossPiecesOfTheFile) {
  std::string bytes;
  const int num_steps = 40000;  // 1.6 MB: the file is read in pieces of 1 MiB
  for (int step = 0; step < num_steps; ++step) {
    bytes += "{\"step\":" + std::to_string(step) + ",\"layer\":1,\"ids\":[1,2,3]}\n";
  }
  ASSERT_GT(bytes.size(), size_t{1} << 20);
  const RouterTrace trace = ReadRouterTrace(Write(bytes));
  EXPECT_EQ(trace.num_steps, num_steps);
  EXPECT_EQ(trace.picks.size(), static_cast<size_t>(num_steps));
}

// Passes of one token, of two, and of one again.
TEST_F(TraceFileTest, PairsOfPassesOfSeveralTokens) {
  const RouterTrace trace =
      ReadRouterTrace(WritePairs({1, 5, 1, 6, 2, 7, 2, 8, 1, 5, 1, 9, 1, 9, 1, 3,
                                  2, 7, 2, 0, 2, 4, 2, 5, 1, 0, 1, 5, 2, 1, 2, 2}));
  EXPECT_EQ(trace.num_steps, 4);
  ASSERT_EQ(trace.picks.size(), 8u);
  EXPECT_THAT(trace.picks[2].ids, ElementsAre(5, 9));
  EXPECT_THAT(trace.picks[3].ids, ElementsAre(7, 0));
  EXPECT_EQ(trace.picks[4].step, 2);
  EXPECT_THAT(trace.picks[4].ids, ElementsAre(9, 3));
  EXPECT_EQ(trace.picks[7].step, 3);
  EXPECT_EQ(ReadRouterTrace(path_, TraceFormat::kBinary, 1).num_steps, 8);
  EXPECT_THROW(ReadRouterTrace(path_, TraceFormat::kBinary, 3), Error);
  EXPECT_THAT(Refusal(std::string("\1\0\0\0\2\0\0\0\1\0\0\0\2\0\0\0", 16)),
              AllOf(HasSubstr("byte 0"), HasSubstr("2 twice"), HasSubstr("--top-k")));
}

TEST_F(TraceFileTest, PairsStartAStepWhenTheLayersStartAgain) {
  const RouterTrace trace =
      ReadRouterTrace(WritePairs({1, 5, 1, 6, 2, 7, 2, 8, 1, 5, 1, 9, 2, 7, 2, 0}));
  EXPECT_EQ(trace.num_steps, 2);
  ASSERT_EQ(trace.picks.size(), 4u);
  EXPECT_THAT(trace.picks[1].ids, ElementsAre(7, 8));
  EXPECT_THAT(trace.picks[2].ids, ElementsAre(5, 9));
  EXPECT_EQ(trace.picks[2].step, 1);
}

TEST_F(TraceFileTest, RefusalsSayLineExpectedAndGot) {
  const std::string good = "{\"step\":0,\"layer\":1,\"ids\":[1]}\n";
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"{\"step\":1,", {"line 2", "not valid JSON"}},
      {"[1]", {"line 2", "expected an object", "got [1]"}},
      {"{\"layer\":1,\"ids\":[1]}", {"line 2", "step", "no such field"}},
      {"{\"step\":-1,\"layer\":1,\"ids\":[1]}", {"line 2", "step: an integer from 0", "got -1"}},
      {"{\"step\":1.5,\"layer\":1,\"ids\":[1]}", {"line 2", "got 1.5"}},
      {"{\"step\":1,\"layer\":5000,\"ids\":[1]}", {"layer: an integer from 0 to 511", "5000"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[]}", {"ids: a filled array"}},
      {"{\"step\":1,\"layer\":1,\"ids\":7}", {"ids: a filled array", "got 7"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[\"x\"]}", {"ids: an integer", "x"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[70000]}", {"4095", "got 70000"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[3,4,3]}", {"each expert once", "3 twice"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[3],\"w\":[1,2]}", {"1 weights", "got 2"}},
      {"{\"step\":1,\"layer\":1,\"ids\":[3],\"w\":[null]}", {"w: numbers", "null"}},
      {"{\"step\":0,\"layer\":1,\"ids\":[3]}", {"step 0 of layer 1", "several"}},
  };
  for (const auto& [line, parts] : cases) {
    const std::string message = Refusal(good + line);
    for (const char* part : parts) EXPECT_THAT(message, HasSubstr(part)) << line;
  }
  EXPECT_THAT(Refusal(good + "{" + std::string(2 << 20, ' ') + "}"), HasSubstr("longer line"));
  std::string wide = "{\"step\":0,\"layer\":1,\"ids\":[0";
  for (int id = 1; id <= kMaxTracePicks; ++id) wide += format(",{}", id);
  EXPECT_THAT(Refusal(wide + "]}"), HasSubstr("ids: at most 256, got 257"));
  std::string pairs;
  for (int32_t id = 0; id <= kMaxTracePicks; ++id) {
    const int32_t pair[] = {1, id};
    pairs.append(reinterpret_cast<const char*>(pair), sizeof(pair));
  }
  EXPECT_THAT(Refusal(pairs), AllOf(HasSubstr("at most 256 picks"), HasSubstr("--top-k")));
  EXPECT_THAT(Refusal(""), HasSubstr("empty file"));
  EXPECT_THAT(Refusal(std::string("\1\0\0\0\2\0\0\0x", 9)),
              AllOf(HasSubstr("byte 8"), HasSubstr("1 bytes more")));
  EXPECT_THAT(Refusal("no trace"), AllOf(HasSubstr("byte 0"), HasSubstr("a layer from 0")));
  EXPECT_THROW(ReadRouterTrace(dir_ / "absent"), Error);
}

RouterTrace Trace(int num_layers, const std::vector<std::vector<std::vector<int32_t>>>& steps) {
  RouterTrace trace;
  trace.num_steps = static_cast<int64_t>(steps.size());
  trace.num_layers = num_layers + 1;
  for (size_t step = 0; step < steps.size(); ++step) {
    for (size_t layer = 0; layer < steps[step].size(); ++layer) {
      trace.picks.push_back(
          {static_cast<int64_t>(step), static_cast<int32_t>(layer + 1), steps[step][layer]});
      for (int32_t id : steps[step][layer]) {
        trace.num_experts = std::max<int64_t>(trace.num_experts, id + 1);
      }
    }
  }
  return trace;
}

TEST(TraceAnalysis, FiguresByHand) {
  const RouterTrace trace =
      Trace(2, {{{0, 1}, {5, 6}}, {{1, 2}, {5, 6}}, {{1, 3}, {7, 5}}, {{0, 1}, {6, 5}}});
  const TraceReport report = AnalyseTrace(trace, 10);
  EXPECT_EQ(report.num_steps, 4);
  EXPECT_EQ(report.num_experts, 10);
  EXPECT_DOUBLE_EQ(report.picks_per_step, 4);
  EXPECT_EQ(report.distinct_used, 4 + 3);
  ASSERT_EQ(report.layers.size(), 2u);
  EXPECT_EQ(report.layers[0].layer, 1);
  EXPECT_EQ(report.layers[0].picks, 8);
  EXPECT_DOUBLE_EQ(report.layers[0].reuse, 3.0 / 6);  // 1, 1, 1
  EXPECT_DOUBLE_EQ(report.layers[1].reuse, 4.0 / 6);  // 5 6, 5, 5
  // The most used so far: {0,1}, then {1,0}, then {1,0}: 1 of {1,2}, 1 of {1,3}, both of {0,1}.
  EXPECT_DOUBLE_EQ(report.layers[0].recall_of_heat, 4.0 / 6);
  EXPECT_DOUBLE_EQ(report.layers[0].load_max_over_mean, 4 / 0.8);
  EXPECT_EQ(report.layers[0].never_used, 6);
  EXPECT_DOUBLE_EQ(report.reuse, 7.0 / 12);
}

TEST(TraceSimulation, NoPolicyBeatsTheOptimumAndFullSlotsAllTie) {
  std::vector<std::vector<std::vector<int32_t>>> steps;
  uint32_t random = 1;
  for (int step = 0; step < 300; ++step) {
    auto& layers = steps.emplace_back();
    for (int layer = 0; layer < 4; ++layer) {
      auto& ids = layers.emplace_back();
      while (ids.size() < 3) {
        random = random * 1664525u + 1013904223u;
        const double unit = static_cast<double>(random >> 8) / (1 << 24);
        const int32_t id = static_cast<int32_t>(16 * unit * unit);  // some are hotter
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
    }
  }
  const RouterTrace trace = Trace(4, steps);
  const TraceSimulation simulation = SimulateTrace(trace, std::vector<int64_t>{2, 6, 12, 24, 64});
  ASSERT_EQ(simulation.policies.size(), 5u);
  const std::vector<double>& best = simulation.policies.back().hit_rates;
  for (const SimulatedPolicy& policy : simulation.policies) {
    for (size_t i = 0; i < best.size(); ++i) {
      // Within a pass that does not fit the slots, the order of its misses matters a little.
      EXPECT_LE(policy.hit_rates[i], best[i] + (i == 0 ? 0.02 : 1e-12)) << policy.name << " " << i;
      if (i > 0) {
        EXPECT_GE(policy.hit_rates[i], policy.hit_rates[i - 1] - 0.01);
      }
    }
    EXPECT_DOUBLE_EQ(policy.hit_rates.back(), best.back());  // every expert has a slot
  }
  EXPECT_THAT(SimulateTrace(trace).slots, ElementsAre(3, 6, 9, 12, 18, 24, 48, 96));
}

// The table of docs/experts.md, in tenths of a percent.
TEST(TraceSimulation, PublishedTraceOfK3) {
  SHARED_OR_SKIP(path, "fixtures/expert_trace.bin");
  const RouterTrace trace = ReadRouterTrace(path);
  EXPECT_EQ(trace.num_steps, 68);
  EXPECT_EQ(trace.picks.size(), size_t{68} * 92);
  EXPECT_DOUBLE_EQ(AnalyseTrace(trace, 896).picks_per_step, 1472);
  const TraceSimulation simulation = SimulateTrace(trace);
  EXPECT_THAT(simulation.slots, ElementsAre(368, 736, 1104, 1472, 2208, 2944, 5888, 11776));
  const std::pair<const char*, std::vector<int>> expected[] = {
      {"next use", {118, 198, 265, 319, 392, 443, 618, 900}},
      {"LRU", {0, 0, 0, 280, 285, 340, 465, 900}},
      {"LRU per layer", {38, 96, 175, 275, 318, 347, 496, 900}},
      {"LFU, decayed", {110, 189, 241, 299, 407, 461, 635, 900}},
      {"optimum", {205, 326, 391, 439, 512, 568, 772, 900}}};
  ASSERT_EQ(simulation.policies.size(), std::size(expected));
  for (size_t i = 0; i < simulation.policies.size(); ++i) {
    EXPECT_EQ(simulation.policies[i].name, expected[i].first);
    std::vector<int> tenths;
    for (const double rate : simulation.policies[i].hit_rates) {
      tenths.push_back(static_cast<int>(std::lround(1000 * rate)));
    }
    EXPECT_EQ(tenths, expected[i].second) << expected[i].first;
  }
}

TEST(HeatMap, HasEveryUsedCellOnce) {
  const RouterTrace trace = Trace(2, {{{0, 1}, {3}}, {{1}, {3}}});
  const std::string svg = HeatMapSvg(trace, 5);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, AllOf(HasSubstr("M0 0.5h1"), HasSubstr("M1 0.5h1"), HasSubstr("M3 1.5h1")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("M2 ")));
  EXPECT_THAT(svg, HasSubstr("2 steps"));
}

}  // namespace
}  // namespace deltafin
