// A shard in the parts in which it is fetched: one expert, or a piece of the spine.
#pragma once

#include <cstdint>
#include <vector>

#include "io/safetensors.h"
#include "store/presence_map.h"

namespace deltafin {

enum class UnitKind : uint8_t {
  kHeader,
  kSpine,   // text, not routed experts
  kExpert,  // all six tensors of one
  kOther,   // not text: the vision tower
};

struct FetchUnit {
  ByteRange range;
  UnitKind kind = UnitKind::kOther;
  int32_t layer = -1;   // -1: outside the layers
  int32_t expert = -1;  // of kExpert
};

// In order of offset, without gaps, the header first. Pieces of spine and of what is not text are
// at most 16 MiB long, about an expert of the release.
std::vector<FetchUnit> UnitsOfShard(const SafetensorsHeader& header, uint64_t file_bytes);

}  // namespace deltafin
