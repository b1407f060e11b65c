#include "reference/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace deltafin::reference {
namespace {

// Infinite when any value is not finite, so that a NaN can never pass.
double MaxAbsDiff(std::span<const float> got, std::span<const double> want) {
  double max = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double diff = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!std::isfinite(diff)) return std::numeric_limits<double>::infinity();
    max = std::max(max, diff);
  }
  return max;
}

}  // namespace

LogitComparison CompareLogits(const std::vector<std::vector<float>>& got,
                              const std::vector<Vec>& want, const Vec& margins, double tolerance) {
  LogitComparison result;
  if (got.size() != want.size() || margins.size() != want.size()) {
    result.failure =
        "got " + std::to_string(got.size()) + " positions of " + std::to_string(want.size());
    return result;
  }
  for (size_t pos = 0; pos < want.size(); ++pos) {
    if (got[pos].size() != want[pos].size()) {
      result.failure =
          "position " + std::to_string(pos) + " has " + std::to_string(got[pos].size()) + " logits";
      return result;
    }
    const double diff = MaxAbsDiff(got[pos], want[pos]);
    if (diff > tolerance) {
      if (std::isfinite(diff) && margins[pos] < kRouterNearTie) {
        result.stopped_at = static_cast<int64_t>(pos);
      } else {
        result.failure = "position " + std::to_string(pos) + " differs by " + std::to_string(diff) +
                         ", tolerance " + std::to_string(tolerance) + ", router margin " +
                         std::to_string(margins[pos]);
      }
      return result;
    }
    result.max_abs_diff = std::max(result.max_abs_diff, diff);
    ++result.positions;
  }
  return result;
}

int64_t DecidedIds(const Vec& margins, const Vec& router_margins, double tolerance) {
  int64_t count = 0;
  while (count < static_cast<int64_t>(margins.size()) && margins[count] >= tolerance &&
         router_margins[count] >= kRouterNearTie) {
    ++count;
  }
  return count;
}

RoutingComparison CompareRouting(const CapturedRouting& got,
                                 const std::vector<std::vector<Routing>>& want) {
  RoutingComparison result;
  size_t positions = 0;
  for (const auto& layer : want) positions = std::max(positions, layer.size());
  for (size_t pos = 0; pos < positions; ++pos) {
    for (size_t layer = 0; layer < want.size(); ++layer) {
      if (want[layer].empty() || want[layer].at(pos).experts.empty()) continue;
      std::vector<int> got_set;
      if (layer < got.size() && pos < got[layer].size()) got_set = got[layer][pos];
      std::vector<int> want_set = want[layer][pos].experts;
      std::sort(got_set.begin(), got_set.end());
      std::sort(want_set.begin(), want_set.end());
      if (got_set == want_set) {
        ++result.equal;
        continue;
      }
      const double margin = want[layer][pos].margin;
      if (got_set.size() == want_set.size() && margin < kRouterNearTie) {
        result.stopped_at = static_cast<int64_t>(pos);
      } else {
        result.failure = "layer " + std::to_string(layer) + ", position " + std::to_string(pos) +
                         " picks other experts at margin " + std::to_string(margin);
      }
      return result;
    }
  }
  return result;
}

double StandardDeviation(const std::vector<Vec>& rows) {
  double count = 0, sum = 0, squares = 0;
  for (const Vec& row : rows) {
    for (const double value : row) {
      ++count;
      sum += value;
      squares += value * value;
    }
  }
  const double mean = sum / count;
  return std::sqrt(squares / count - mean * mean);
}

std::vector<Vec> SplitRows(const Vec& values, int64_t width) {
  std::vector<Vec> rows;
  for (auto it = values.begin(); it != values.end(); it += width) rows.emplace_back(it, it + width);
  return rows;
}

std::vector<TraceDifference> CompareTrace(const CapturedTrace& got, const NamedTensors& gold) {
  std::vector<TraceDifference> differences;
  for (const auto& [name, values] : got) {
    const auto it = gold.find(name);
    if (it == gold.end() || it->second.size() != values.size()) {
      throw std::runtime_error("trace tensor " + name + " has no gold of its size");
    }
    double squares = 0;
    for (const double value : it->second) squares += value * value;
    differences.push_back({name, MaxAbsDiff(values, it->second),
                           std::sqrt(squares / static_cast<double>(values.size()))});
  }
  return differences;
}

}  // namespace deltafin::reference
