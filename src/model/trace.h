// An observer of the forward pass, for tests and for people who study the model.
#pragma once

#include <cstdint>
#include <span>

namespace deltafin {

enum class TracePoint : uint8_t {
  kAttnIn,    // attention residual mix before input_layernorm; the embedding for layer 0
  kAttnOut,   // output of KDA or MLA
  kMlpIn,     // attention residual mix before post_attention_layernorm
  kMlpOut,    // output of the dense MLP or the MoE
  kHidden,    // prefix sum after the layer
  kFinalMix,  // output residual mix (layer = num_layers)
  kFinalNorm,
};

// Called from the thread that runs the pass. `rows` x `width` values, host memory, valid during the
// call; positions in the order of the pass.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // False spares the pass the copies.
  virtual bool WantsActivations() const { return true; }
  virtual void OnActivations(int64_t layer, TracePoint point, std::span<const float> values,
                             int64_t width) = 0;
  // The router's picks, [rows, top_k], in descending biased score.
  virtual void OnPicks(int64_t layer, std::span<const int32_t> ids, std::span<const float> weights,
                       int64_t top_k) = 0;
};

}  // namespace deltafin
