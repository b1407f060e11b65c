#include "model/state_capture.h"

namespace deltafin {

StateCapture::StateCapture(const ModelConfig& config, Device& device, int64_t num_tokens)
    : config_(config), device_(device), num_tokens_(num_tokens), parts_(Bytes(config)) {
  const size_t layer_bytes = SequenceState::KdaBytes(config) + SequenceState::ConvBytes(config);
  size_t begin = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    begin_.push_back(begin);
    if (!config.is_mla[layer]) begin += layer_bytes;
  }
}

uint64_t StateCapture::Bytes(const ModelConfig& config) {
  return static_cast<uint64_t>(config.num_layers - config.num_mla_layers()) *
         (SequenceState::KdaBytes(config) + SequenceState::ConvBytes(config));
}

void StateCapture::KeepHistory(const SequenceState& state, int64_t layer, int which) {
  const size_t bytes = SequenceState::ConvBytes(config_) / 3;
  std::byte* const to = parts_.data() + begin_[layer] + SequenceState::KdaBytes(config_);
  device_.ToHost(to + static_cast<size_t>(which) * bytes, state.conv_history(layer, which), bytes);
}

void StateCapture::KeepKda(const SequenceState& state, int64_t layer) {
  device_.ToHost(parts_.data() + begin_[layer], state.kda_state(layer),
                 SequenceState::KdaBytes(config_));
}

std::span<const std::byte> StateCapture::kda(int64_t layer) const {
  return std::span(parts_).subspan(begin_[layer], SequenceState::KdaBytes(config_));
}

std::span<const std::byte> StateCapture::conv(int64_t layer) const {
  return std::span(parts_).subspan(begin_[layer] + SequenceState::KdaBytes(config_),
                                   SequenceState::ConvBytes(config_));
}

}  // namespace deltafin
