#include "store/fetch_units.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "store/layout.h"

namespace deltafin {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{16} << 20;
constexpr std::string_view kLayerPrefix = "language_model.model.layers.";

FetchUnit Classify(std::string_view name) {
  FetchUnit unit;
  if (const auto expert = ParseExpertTensorName(name)) {
    unit.kind = UnitKind::kExpert;
    unit.layer = static_cast<int32_t>(expert->layer);
    unit.expert = static_cast<int32_t>(expert->expert);
    return unit;
  }
  if (!name.starts_with(kTextPrefix)) return unit;
  unit.kind = UnitKind::kSpine;
  if (!name.starts_with(kLayerPrefix)) return unit;
  const std::string_view number = name.substr(kLayerPrefix.size());
  (void)std::from_chars(number.data(), number.data() + number.size(), unit.layer);
  return unit;
}

bool BelongTogether(const FetchUnit& a, const FetchUnit& b) {
  return a.kind == b.kind && a.layer == b.layer && a.expert == b.expert &&
         a.range.end() == b.range.offset;
}

// An expert stays whole: it is asked for whole.
void AppendPieces(const FetchUnit& unit, std::vector<FetchUnit>& units) {
  const uint64_t piece = unit.kind == UnitKind::kExpert ? unit.range.bytes : kPieceBytes;
  for (uint64_t at = 0; at < unit.range.bytes; at += piece) {
    FetchUnit part = unit;
    part.range = {unit.range.offset + at, std::min(piece, unit.range.bytes - at)};
    units.push_back(part);
  }
}

}  // namespace

std::vector<FetchUnit> UnitsOfShard(const SafetensorsHeader& header, uint64_t file_bytes) {
  std::vector<size_t> order(header.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return header.entry(a).offset < header.entry(b).offset; });
  std::vector<FetchUnit> units;
  FetchUnit current{{0, std::min(header.data_begin(), file_bytes)}, UnitKind::kHeader, -1, -1};
  for (const size_t i : order) {
    if (header.entry(i).bytes == 0) continue;
    FetchUnit next = Classify(header.name(i));
    next.range = {header.entry(i).offset, header.entry(i).bytes};
    if (BelongTogether(current, next)) {
      current.range.bytes += next.range.bytes;
      continue;
    }
    AppendPieces(current, units);
    current = next;
  }
  AppendPieces(current, units);
  return units;
}

}  // namespace deltafin
