// The heat map of a trace.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/format.h"
#include "deltafin/trace_analysis.h"

namespace deltafin {
namespace {

constexpr int kLevels = 12;
constexpr int kLeft = 34;  // room for layer numbers
constexpr int kTop = 22;   // and for the title

// From pale yellow to dark red.
std::string Colour(int level) {
  const double t = static_cast<double>(level) / kLevels;
  const auto channel = [&](double from, double to) {
    return static_cast<int>(std::lround(from + (to - from) * t));
  };
  return format("#{:02x}{:02x}{:02x}", channel(255, 110), channel(237, 0), channel(160, 38));
}

}  // namespace

std::string HeatMapSvg(const RouterTrace& trace, int64_t num_experts) {
  const int64_t columns = std::max(trace.num_experts, num_experts);
  std::vector<std::vector<int64_t>> uses(static_cast<size_t>(trace.num_layers));
  for (const TracedPicks& picks : trace.picks) {
    std::vector<int64_t>& row = uses[static_cast<size_t>(picks.layer)];
    row.resize(static_cast<size_t>(columns));
    for (int32_t id : picks.ids) ++row[static_cast<size_t>(id)];
  }
  std::erase_if(uses, [](const auto& row) { return row.empty(); });
  int64_t most = 1;
  for (const auto& row : uses) most = std::max(most, *std::max_element(row.begin(), row.end()));

  // Few uses are many experts: the scale is logarithmic. One path per colour keeps the file small.
  const auto level_of = [&](int64_t count) {
    if (count == 0) return 0;
    const double part =
        std::log1p(static_cast<double>(count)) / std::log1p(static_cast<double>(most));
    return std::clamp(static_cast<int>(std::ceil(part * kLevels)), 1, kLevels);
  };
  std::vector<std::string> paths(kLevels + 1);
  for (size_t row = 0; row < uses.size(); ++row) {
    for (size_t begin = 0; begin < uses[row].size();) {
      const int level = level_of(uses[row][begin]);
      size_t end = begin + 1;
      while (end < uses[row].size() && level_of(uses[row][end]) == level) ++end;
      if (level > 0)
        paths[static_cast<size_t>(level)] += format("M{} {}.5h{}", begin, row, end - begin);
      begin = end;
    }
  }

  const int cell = columns > 400 ? 2 : 6;
  const int width = static_cast<int>(columns) * cell;
  const int height = static_cast<int>(uses.size()) * cell;
  std::string svg = format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="11">)"
      "\n<title>Uses of each expert</title>\n"
      R"(<text x="{}" y="14">{} steps; rows: MoE layers, columns: {} experts; white: never, darkest: {} uses</text>)"
      "\n",
      kLeft + width + 8, kTop + height + 8, kLeft, trace.num_steps, columns, most);
  std::vector<int32_t> layers;
  for (const TracedPicks& picks : trace.picks) layers.push_back(picks.layer);
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  const size_t label_every = static_cast<size_t>((12 + cell - 1) / cell);
  for (size_t row = 0; row < layers.size(); row += label_every) {
    svg += format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 4,
                  kTop + static_cast<int>(row) * cell + 9, layers[row]);
  }
  svg += format("<g transform=\"translate({} {}) scale({})\">\n", kLeft, kTop, cell);
  svg += format(
      "<rect width=\"{}\" height=\"{}\" fill=\"#fff\" stroke=\"#999\" stroke-width=\"0.2\"/>\n",
      columns, uses.size());
  for (int level = 1; level <= kLevels; ++level) {
    const std::string& path = paths[static_cast<size_t>(level)];
    if (!path.empty()) svg += format("<path stroke=\"{}\" d=\"{}\"/>\n", Colour(level), path);
  }
  return svg + "</g>\n</svg>\n";
}

}  // namespace deltafin
