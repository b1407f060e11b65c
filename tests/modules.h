// The modules of the model, composed from device operators: what the forward pass does, without
// batching, streaming or sessions.
#pragma once

#include <vector>

#include "device/device_test_util.h"
#include "tensors.h"

namespace deltafin {

using Floats = std::vector<float>;

struct KdaModule {
  int64_t heads, dim;
  float lower_bound, eps;
  OwnedMatrix q, k, v, g, o, f_a, f_b, b;
  Floats q_conv, k_conv, v_conv, a_log, dt_bias, o_norm;

  // [n, hidden] -> [n, hidden]; state and the three histories are advanced.
  struct State {
    Floats recurrent;     // [heads, dim, dim]
    Floats histories[3];  // q, k, v: [3, heads * dim]
  };
  State NewState() const;
  Floats Run(Device& device, const Floats& x, State* state) const;
};

struct MlaModule {
  MlaShape shape;
  float low_rank_eps;
  OwnedMatrix q_a, q_b, kv_a, kv_b, g, o;
  Floats q_a_norm, kv_a_norm;

  // A sequence from its first token on. `latents` receives the cache entries, [n, kv_lora + rope].
  // The cache is filled and read `step` positions at a time.
  Floats Run(Device& device, const Floats& x, int64_t step, Floats* latents) const;
};

struct MoeModule {
  RouterParams router;
  SituParams situ;
  float eps;
  OwnedMatrix gate, down, up, shared_gate, shared_up, shared_down;
  Floats bias, norm;
  std::vector<OwnedMatrix> w1, w3, w2;  // by expert

  struct Trace {
    std::vector<int32_t> ids;
    Floats weights, latent, aggregate;
  };
  Floats Run(Device& device, const Floats& x, Trace* trace) const;
};

// Attention residual: `snapshots` are [n, hidden] each, oldest first.
Floats ResidualMix(Device& device, const std::vector<Floats>& snapshots, const Floats& prefix,
                   const Tensor& norm, const Tensor& projection, float eps);
Floats RmsNorm(Device& device, const Floats& x, const Floats& weight, float eps);
Floats MatMul(Device& device, const OwnedMatrix& w, const Floats& x);

}  // namespace deltafin
