#include "model/rollback.h"

#include "base/check.h"

namespace deltafin {
namespace {

size_t RowsBytes(const ModelConfig& config, int64_t rows) {
  return static_cast<size_t>(rows * config.kda_width()) * sizeof(float);
}

size_t BetaBytes(const ModelConfig& config, int64_t rows) {
  return static_cast<size_t>(rows * config.kda_heads) * sizeof(float);
}

}  // namespace

Rollback::Rollback(const ModelConfig& config, Device& device, int64_t max_tokens)
    : config_(config), device_(device), max_tokens_(max_tokens), layers_(config.num_layers) {
  const size_t rows = RowsBytes(config, max_tokens);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_mla[layer]) continue;
    Layer& l = layers_[layer];
    l.kda = DeviceBuffer(device, SequenceState::KdaBytes(config));
    l.conv = DeviceBuffer(device, SequenceState::ConvBytes(config));
    l.projections = DeviceBuffer(device, 3 * rows);
    l.k = DeviceBuffer(device, rows);
    l.v = DeviceBuffer(device, rows);
    l.alpha = DeviceBuffer(device, rows);
    l.beta = DeviceBuffer(device, BetaBytes(config, max_tokens));
  }
  unused_out_ = DeviceBuffer(device, rows);
}

uint64_t Rollback::Bytes(const ModelConfig& config, int64_t max_tokens) {
  const uint64_t layers = static_cast<uint64_t>(config.num_layers - config.num_mla_layers());
  const uint64_t rows = RowsBytes(config, max_tokens);
  return layers * (SequenceState::KdaBytes(config) + SequenceState::ConvBytes(config) + 6 * rows +
                   BetaBytes(config, max_tokens)) +
         rows;
}

void Rollback::Begin(const SequenceState& state, int64_t num_tokens) {
  DF_CHECK(num_tokens <= max_tokens_);
  first_ = state.num_tokens();
  num_tokens_ = num_tokens;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.is_mla[layer]) continue;
    const Layer& l = layers_[layer];
    device_.Copy(l.kda.floats(), state.kda_state(layer), l.kda.size_bytes());
    device_.Copy(l.conv.floats(), state.conv_history(layer, 0), l.conv.size_bytes());
  }
}

void Rollback::KeepProjection(int64_t layer, int which, const float* projected) {
  device_.Copy(layers_[layer].projections.floats() + which * max_tokens_ * config_.kda_width(),
               projected, RowsBytes(config_, num_tokens_));
}

void Rollback::KeepRecurrence(int64_t layer, const float* k, const float* v, const float* alpha,
                              const float* beta) {
  const Layer& l = layers_[layer];
  const size_t rows = RowsBytes(config_, num_tokens_);
  device_.Copy(l.k.floats(), k, rows);
  device_.Copy(l.v.floats(), v, rows);
  device_.Copy(l.alpha.floats(), alpha, rows);
  device_.Copy(l.beta.floats(), beta, BetaBytes(config_, num_tokens_));
}

void Rollback::Undo(SequenceState& state, int64_t kept) {
  DF_CHECK(kept >= 0 && kept <= num_tokens_ && state.num_tokens() == first_ + num_tokens_);
  if (kept == num_tokens_) return;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.is_mla[layer]) continue;
    const Layer& l = layers_[layer];
    device_.Copy(state.kda_state(layer), l.kda.floats(), l.kda.size_bytes());
    if (kept > 0) {
      device_.KdaRecurrence(unused_out_.floats(), state.kda_state(layer), l.k.floats(),
                            l.k.floats(), l.v.floats(), l.alpha.floats(), l.beta.floats(), kept,
                            config_.kda_heads, config_.kda_head_dim);
    }
    ReplayHistory(state, layer, kept);
  }
  state.Truncate(first_ + kept);
}

// The history is the last conv_kernel - 1 of: what it was before, then the kept inputs.
void Rollback::ReplayHistory(SequenceState& state, int64_t layer, int64_t kept) {
  const Layer& l = layers_[layer];
  const int64_t width = config_.kda_width();
  const int64_t steps = config_.conv_kernel - 1;
  for (int which = 0; which < 3; ++which) {
    const float* before = l.conv.floats() + which * steps * width;
    const float* inputs = l.projections.floats() + which * max_tokens_ * width;
    for (int64_t j = 0; j < steps; ++j) {
      const int64_t at = kept + j;
      const float* from = at < steps ? before + at * width : inputs + (at - steps) * width;
      device_.Copy(state.conv_history(layer, which) + j * width, from, RowsBytes(config_, 1));
    }
  }
}

}  // namespace deltafin
