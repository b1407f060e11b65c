// Small types shared by every public header.
#pragma once

#include <cstdint>

namespace deltafin {

using TokenId = int32_t;

// How the latent cache of the MLA layers is kept. kF32 is the default: it adds no rounding.
enum class CacheFormat : uint8_t { kF32, kBf16 };

// Which spine is read (all weights but the routed experts).
enum class SpineFormat : uint8_t {
  kAuto,  // int8 when a complete conversion of these weights is there, else bf16
  kBf16,  // as released
  kInt8,  // converted (convert.h): half the bytes, other results
};

// What computes. Never changes a result: a GPU without the CPU's bits is not used.
enum class DeviceChoice : uint8_t {
  kAuto,  // a GPU with memory of its own that passes the self-test and holds weights, else the CPU
  kCpu,
  kGpu,  // and the CPU for what does not fit
};

enum class Numerics : uint8_t {
  kExact,   // docs/numerics.md
  kApprox,  // other arithmetic where it is measurably faster; on a CPU it is not (docs/decoding.md)
};

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
