// How tests compare an engine in fp32 with float64 gold.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "reference/reference_model.h"

namespace deltafin::reference {

// Two experts whose biased scores are closer than this may change places in fp32: scores lie in
// (-1, 2), so one rounding is 1.2e-7, and the inputs of a router carry about 1e-6 after a dozen
// layers. A swap is a discontinuity: the logits of that and every later position mean nothing then.
constexpr double kRouterNearTie = 1e-5;

struct LogitComparison {
  int64_t positions = 0;  // compared, all within the tolerance
  double max_abs_diff = 0;
  // Set where a position exceeds the tolerance without a router near tie to explain it.
  std::string failure;
  // Position of the near tie that ended the comparison; -1: none, everything was compared.
  int64_t stopped_at = -1;
};

// Compares position after position ([positions][vocab] each). `margins[i]`: the smallest router
// margin of position i. The first position that exceeds the tolerance must be a near tie itself;
// it ends the comparison. A position that is a near tie but agrees does not.
LogitComparison CompareLogits(const std::vector<std::vector<float>>& got,
                              const std::vector<Vec>& want, const Vec& margins, double tolerance);

// The number of leading ids that must agree: up to the first choice whose margin is below
// `tolerance` or that follows a router near tie.
int64_t DecidedIds(const Vec& margins, const Vec& router_margins, double tolerance);

// Experts by layer (0-based; dense layers empty), position and pick.
using CapturedRouting = std::vector<std::vector<std::vector<int>>>;

struct RoutingComparison {
  int64_t equal = 0;        // decisions compared and equal as sets
  std::string failure;      // a decision that differs though it is no near tie
  int64_t stopped_at = -1;  // position whose near tie went the other way; -1: none
};

// Compares sets of picks, position after position and layer after layer within each: the order in
// which a decision can influence others.
RoutingComparison CompareRouting(const CapturedRouting& got,
                                 const std::vector<std::vector<Routing>>& want);

double StandardDeviation(const std::vector<Vec>& rows);

// The rows of a [rows, width] tensor.
std::vector<Vec> SplitRows(const Vec& values, int64_t width);

// What an observer of the engine's forward pass hands to CompareTrace: the names are those of
// reference_model.h, the values [positions, width].
using CapturedTrace = std::map<std::string, std::vector<float>>;

struct TraceDifference {
  std::string name;
  double max_abs = 0;
  double gold_rms = 0;
  double relative() const { return max_abs / gold_rms; }
};

// The differences of every tensor that `got` has, in the order of names. Throws std::runtime_error
// for a tensor that gold lacks or that has another size.
std::vector<TraceDifference> CompareTrace(const CapturedTrace& got, const NamedTensors& gold);

}  // namespace deltafin::reference
