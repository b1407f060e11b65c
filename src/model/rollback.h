// Takes back the last tokens of a pass, bit for bit, without reading a weight again.
//
// A KDA state cannot be run backwards: the decay may round to zero. So the states from before the
// pass are copied, and what the recurrence was fed is kept; the tokens that stay are run through
// the recurrence once more. It is sequential (docs/numerics.md), so the bits are those of a pass
// that never had the other tokens. Convolution histories are the last inputs; the latent cache of
// MLA layers is cut off.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/sequence_state.h"
#include "store/model_config.h"

namespace deltafin {

// For one sequence. Not thread-safe; `config` and `device` must outlive it.
class Rollback {
 public:
  // For passes of at most `max_tokens` tokens. Throws Error(kOutOfMemory).
  Rollback(const ModelConfig& config, Device& device, int64_t max_tokens);

  int64_t max_tokens() const { return max_tokens_; }

  // Before a pass that adds `num_tokens` to `state`. The forward pass calls this and the two below.
  void Begin(const SequenceState& state, int64_t num_tokens);
  // Inputs of the convolution of q (0), k (1) or v (2): [num_tokens, heads * dim].
  void KeepProjection(int64_t layer, int which, const float* projected);
  // Inputs of the recurrence: [num_tokens, heads * dim], beta [num_tokens, heads]. The query is not
  // needed: it does not change the state.
  void KeepRecurrence(int64_t layer, const float* k, const float* v, const float* alpha,
                      const float* beta);

  // After the pass: `state` as if the pass had had its first `kept` tokens only.
  void Undo(SequenceState& state, int64_t kept);

  // Bytes of device memory.
  static uint64_t Bytes(const ModelConfig& config, int64_t max_tokens);

 private:
  struct Layer {
    DeviceBuffer kda;  // as before the pass
    DeviceBuffer conv;
    DeviceBuffer projections;  // [3, max_tokens, heads * dim]
    DeviceBuffer k, v, alpha;  // [max_tokens, heads * dim]
    DeviceBuffer beta;         // [max_tokens, heads]
  };
  void ReplayHistory(SequenceState& state, int64_t layer, int64_t kept);

  const ModelConfig& config_;
  Device& device_;
  int64_t max_tokens_;
  int64_t first_ = 0;       // tokens before the pass
  int64_t num_tokens_ = 0;  // of the pass
  std::vector<Layer> layers_;
  DeviceBuffer unused_out_;  // [max_tokens, heads * dim]
};

}  // namespace deltafin
