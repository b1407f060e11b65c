// Made-up weights that keep a K3 forward pass sane.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "store/layout.h"
#include "store/model_config.h"

namespace deltafin {

struct SynthStyle {
  uint64_t seed = 1;
  double skew = 1;
  double context_share = 0;  // synth_routing.h
};

// The values of one tensor, block by block, from the seed, the tensor's name and the place alone.
// docs/synth.md says how they are chosen.
class SynthTensor {
 public:
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  // Fails the process for a tensor that no layout has.
  SynthTensor(const ModelConfig& config, const TensorSpec& spec, const SynthStyle& style);

  // Bytes [index * kBlockBytes, ...) of the tensor; the last block may be shorter.
  void Fill(uint64_t index, std::span<std::byte> block) const;

 private:
  enum class Kind : uint8_t { kPlain, kPacked, kScales, kALog, kDtBias, kConv };

  void FillBytes(uint64_t begin, std::span<std::byte> block) const;
  // write(i, value) for the values begin + i, i < count.
  template <class Write>
  void FillPlain(uint64_t begin, uint64_t count, Write&& write) const;
  float PlainValue(uint64_t index) const;
  double SpecialValue(uint64_t index, double noise) const;
  void SetScales(const SynthStyle& style, std::string_view name);

  Kind kind_ = Kind::kPlain;
  uint64_t key_ = 0;
  DType dtype_ = DType::kBf16;
  uint64_t cols_ = 1;
  // kPlain: mean + spread * uniform(-1, 1) * the row's and column's factor by their parity.
  float mean_ = 0;
  float spread_ = 0;
  float row_factor_[2] = {1, 1};
  float col_factor_[2] = {1, 1};
  bool is_paired_ = false;  // each odd column is the negative of the column before it
  uint8_t scale_byte_ = 127;
  uint64_t heads_ = 1;  // kALog, kDtBias
  uint64_t head_dim_ = 1;
};

}  // namespace deltafin
