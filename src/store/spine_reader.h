// Reading the small parts of the spine from a checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "deltafin/types.h"
#include "store/checkpoint.h"
#include "store/layout.h"

namespace deltafin {

// The small tensors of one layer, or of the top, widened to fp32. 0.6 MB for a KDA layer of the
// release: every store keeps them. Immutable.
class SpineVectors {
 public:
  // Throws Error when a read fails.
  SpineVectors(const Checkpoint& checkpoint, const LayerLayout& layout);

  // `id` is in the layout.
  const float* Get(SpineVector id) const;
  std::span<const float> all() const { return {values_.data(), values_.size()}; }
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  AlignedBuffer<float> values_;
  uint64_t bytes_read_ = 0;
  std::array<const float*, static_cast<size_t>(SpineVector::kCount)> begins_ = {};
};

// Layer 0 .. num_layers - 1, or num_layers for the top.
LayerLayout LayoutOfSpine(const ModelConfig& config, int64_t layer);

uint64_t EmbeddingRowBytes(const ModelConfig& config);

// Reads the rows of the embedding one by one and widens them: out is [tokens.size(), hidden_size].
// Throws Error(kInvalidArgument) for an id outside the vocabulary, and when a read fails.
// Thread-safe.
void ReadEmbeddingRows(const Checkpoint& checkpoint, std::span<const TokenId> tokens, float* out);

}  // namespace deltafin
