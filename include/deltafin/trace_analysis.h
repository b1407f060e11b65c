// What a record of the router's picks says about reuse, heat, and what slots of RAM would buy.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {

// Far above K3's 93 layers of 896 experts, of which a token gets 16: what is beyond is no trace,
// and would take memory and time.
inline constexpr int64_t kMaxTraceLayers = 512;
inline constexpr int64_t kMaxTraceExperts = 4096;  // of a layer
inline constexpr int64_t kMaxTracePicks = 256;     // of a token in a layer

struct TracedPicks {
  int64_t step = 0;  // token
  int32_t layer = 0;
  std::vector<int32_t> ids;  // distinct
};

struct RouterTrace {
  int64_t num_steps = 0;           // different ones
  int64_t num_layers = 0;          // one more than the highest layer
  int64_t num_experts = 0;         // one more than the highest expert
  std::vector<TracedPicks> picks;  // by step, then by layer; each pair once
};

enum class TraceFormat : uint8_t {
  kDetect,
  kJsonLines,  // {"step": 0, "layer": 1, "ids": [...], "w": [...]}, one per line, in any order
  kBinary,     // int32 pairs (layer, expert), little-endian, in the order of passes
};

// `top_k`: picks per token and layer of a binary file; 0: the largest number that fits it. Throws
// Error naming the file and the line (or byte), what was expected and what was found.
RouterTrace ReadRouterTrace(const std::string& path, TraceFormat format = TraceFormat::kDetect,
                            int64_t top_k = 0);

struct LayerTraceReport {
  int64_t layer = 0;
  int64_t picks = 0;
  // Share of the picks that the layer made for the step before, too: the recall of a prediction by
  // the previous token's picks.
  double reuse = 0;
  // Recall of a prediction by as many of the experts that were used most so far.
  double recall_of_heat = 0;
  double load_max_over_mean = 0;  // of its experts
  int64_t never_used = 0;         // experts
};

struct TraceReport {
  int64_t num_steps = 0;
  int64_t num_experts = 0;    // per layer
  double picks_per_step = 0;  // in all layers: the working set of a token
  double reuse = 0;           // means over all picks
  double recall_of_heat = 0;
  int64_t distinct_used = 0;  // experts of all layers
  std::vector<LayerTraceReport> layers;
};

// `num_experts`: per layer, where the trace cannot tell because the last ones were never used.
TraceReport AnalyseTrace(const RouterTrace& trace, int64_t num_experts = 0);

struct SimulatedPolicy {
  std::string name;
  std::vector<double> hit_rates;  // for each number of slots
};

struct TraceSimulation {
  std::vector<int64_t> slots;
  std::vector<SimulatedPolicy> policies;  // the one that the program uses first, the optimum last
};

// Hits of decoding the trace step by step with so many slots. No `slots`: parts and multiples of
// the working set of a token.
TraceSimulation SimulateTrace(const RouterTrace& trace, std::span<const int64_t> slots = {});

// How often each expert was picked: a row for each layer, a column for each expert.
std::string HeatMapSvg(const RouterTrace& trace, int64_t num_experts = 0);

}  // namespace deltafin
