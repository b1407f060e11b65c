// Checkpoints with the exact layout of Kimi K3 and made-up weights, for tests and measurements.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace deltafin {

enum class SynthLike : uint8_t {
  kK3,    // the widths of the release
  kNano,  // those of the small model in this repository
};

struct SynthProgress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  double seconds = 0;
};

struct SynthOptions {
  std::string dir;
  SynthLike like = SynthLike::kK3;
  int64_t layers = 0;   // 0: 4 of K3's widths (93 when `skeleton`), 13 of nano's
  int64_t experts = 0;  // of a layer; 0: 896, or nano's 64
  int64_t vocab = 0;    // 0: 163,840, or nano's 4,608; at least 512
  uint64_t seed = 1;
  double skew = 1;  // how much some experts are preferred: 0 (not) to 4
  // Part of a token's experts that the token before it had too: 0 to 0.8, about, less where tokens
  // pick few of many. Not set: 0.3, or as much as is possible.
  std::optional<double> reuse = std::nullopt;
  bool no_vision = false;  // without the release's vision shards: 0.8 GB of holes beside nano
  bool skeleton = false;   // holes in place of weights: full size, hardly any disk space
  int threads = 0;         // 0: all processors
  // Called a few times a second by the thread that called WriteSynth; return false to cancel.
  std::function<bool(const SynthProgress&)> on_progress = nullptr;
};

struct SynthSize {
  int64_t layers = 0;
  int64_t experts = 0;
  int64_t vocab = 0;
  int num_shards = 0;
  uint64_t file_bytes = 0;   // size of all shards
  uint64_t write_bytes = 0;  // of those, what is written; the rest are holes
  uint64_t free_bytes = 0;   // what the disk has left
};

// What WriteSynth will write. Throws Error(kInvalidArgument) for options that are out of range.
SynthSize SizeOfSynth(const SynthOptions& options);

// Writes the checkpoint. The bytes depend on like, layers, experts, vocab, seed, skew, reuse,
// no_vision and skeleton alone. config.json comes last, so that nothing opens before it is
// complete; a call with the same options goes on where an earlier one stopped. Throws
// Error(kInvalidArgument) when the folder holds something else, Error(kIo) when the disk has not
// enough room or fails, Error(kCancelled).
void WriteSynth(const SynthOptions& options);

}  // namespace deltafin
