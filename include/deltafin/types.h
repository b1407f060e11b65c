// Small types shared by every public header.
#pragma once

#include <cstdint>

namespace deltafin {

using TokenId = int32_t;

// How the latent cache of the MLA layers is kept. kF32 is the default: it adds no rounding.
enum class CacheFormat : uint8_t { kF32, kBf16 };

// As a number of draft tokens: the engine decides.
inline constexpr int64_t kAutoDraft = -1;

// Whether experts are read before the router has picked them. Never changes a result.
enum class Prefetch : uint8_t {
  kAuto,  // in the layers where it pays
  kOff,
};

// Why a generation ended.
enum class FinishReason : uint8_t {
  kStop,       // the model ended its message or document
  kLength,     // max_new_tokens was reached
  kCancelled,  // the caller asked to stop
};

}  // namespace deltafin
