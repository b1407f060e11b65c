// The state that a sequence has in the middle of a pass.
//
// A latent cache only grows, so what it held earlier is there after the pass. What KDA layers hold
// is overwritten by every token: it is copied when the pass comes by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/sequence_state.h"
#include "store/model_config.h"

namespace deltafin {

// Of one sequence and pass. SequenceState::SaveTo makes a saved state of it.
class StateCapture {
 public:
  // After the first `num_tokens` of the sequence, of which at least one is in the pass.
  StateCapture(const ModelConfig& config, Device& device, int64_t num_tokens);

  int64_t num_tokens() const { return num_tokens_; }
  // Convolution histories, and KDA state, of a layer of which the pass has done the tokens so far.
  // The forward pass calls these.
  void KeepHistory(const SequenceState& state, int64_t layer, int which);
  void KeepKda(const SequenceState& state, int64_t layer);

  // Of a layer: host memory.
  std::span<const std::byte> kda(int64_t layer) const;
  std::span<const std::byte> conv(int64_t layer) const;

  static uint64_t Bytes(const ModelConfig& config);

 private:
  const ModelConfig& config_;
  Device& device_;
  const int64_t num_tokens_;
  std::vector<std::byte> parts_;  // of every KDA layer: state, then histories
  std::vector<size_t> begin_;     // of each layer in it
};

}  // namespace deltafin
