#include "store/synth_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string_view>

#include "base/check.h"
#include "io/hash.h"

namespace deltafin {
namespace {

// splitmix64: random number `index` of a stream.
uint64_t RandomAt(uint64_t stream, uint64_t index) {
  uint64_t z = stream + index * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Of 16 of its bits, in [-1, 1).
float Uniform(uint64_t random, int part) {
  return static_cast<float>(static_cast<int16_t>(random >> (16 * part))) * 0x1p-15f;
}

uint16_t RoundToBf16(float value) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0x8000u) >> 16);
}

// A uniform distribution of standard deviation 1 reaches this far.
constexpr float kReach = 1.7320508f;
// Root mean square of the sixteen MXFP4 values, and of the factors 1/2, 1, 1, 2 of the scales.
constexpr double kPackedRms = 2.926;
constexpr double kScalesRms = 1.25;

// Hidden columns are of two kinds. Even ones carry the token itself (embedding, MLPs), odd ones the
// context (attention); what writes into the other kind writes this much less.
constexpr float kOther = 0.1f;

// How far tokens back an average head remembers: from 8 to 128, by head.
constexpr double kShortestMemory = 8;
constexpr double kMemoryRange = 16;

// Standard deviation of the router's bias for a skew of 1. Scores near the picked ones are dense:
// it takes little.
constexpr double kBiasPerSkew = 0.01;

}  // namespace

SynthTensor::SynthTensor(const ModelConfig& config, const TensorSpec& spec, const SynthStyle& style)
    : key_(RandomAt(Xxh3(std::as_bytes(std::span(spec.name))), style.seed)), dtype_(spec.dtype) {
  cols_ = static_cast<uint64_t>(spec.shape.dims[spec.shape.rank - 1]);
  const std::string_view name = spec.name;
  if (name.ends_with("weight_packed")) {
    kind_ = Kind::kPacked;
  } else if (name.ends_with("weight_scale")) {
    kind_ = Kind::kScales;
    const double rms = kPackedRms * kScalesRms * std::sqrt(32.0 * static_cast<double>(cols_));
    scale_byte_ = static_cast<uint8_t>(127 - std::lround(std::log2(rms)));
  } else if (name.ends_with("A_log") || name.ends_with("dt_bias")) {
    kind_ = name.ends_with("A_log") ? Kind::kALog : Kind::kDtBias;
    heads_ = static_cast<uint64_t>(config.kda_heads);
    head_dim_ = static_cast<uint64_t>(config.kda_head_dim);
  } else if (name.ends_with("conv1d.weight")) {
    kind_ = Kind::kConv;
  } else {
    SetScales(style, name);
  }
}

void SynthTensor::SetScales(const SynthStyle& style, std::string_view name) {
  const float per_column = kReach / std::sqrt(static_cast<float>(cols_));
  const auto is = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (is("norm.weight")) {
    mean_ = 1;
    spread_ = 0.05f * kReach;
  } else if (is("gate.e_score_correction_bias")) {
    spread_ = static_cast<float>(kBiasPerSkew * style.skew) * kReach;
  } else if (is("embed_tokens.weight")) {
    spread_ = kReach;
    col_factor_[1] = kOther;
  } else if (is("block_sparse_moe.gate.weight")) {
    const double angle = style.context_share * std::numbers::pi / 2;
    spread_ = per_column * std::numbers::sqrt2_v<float>;
    col_factor_[0] = static_cast<float>(std::cos(angle));
    col_factor_[1] = static_cast<float>(std::sin(angle));
  } else if (is("self_attn.o_proj.weight")) {
    // Paired: what all channels of a head have in common (SiLU's mean) must not become a direction
    // that every token shares, or the same experts are picked for ever.
    spread_ = 2 * per_column;
    row_factor_[0] = kOther;
    is_paired_ = true;
  } else if (is("down_proj.weight") && !is("routed_expert_down_proj.weight")) {
    spread_ = 1.5f * per_column;
    row_factor_[1] = kOther;
  } else if (is("routed_expert_up_proj.weight")) {
    spread_ = per_column;
    row_factor_[1] = kOther;
  } else if (is("self_attn.q_proj.weight") || is("self_attn.k_proj.weight")) {
    spread_ = 3 * per_column;
    if (is("q_proj.weight")) col_factor_[0] = 0.3f;
  } else if (is("self_attn.g_proj.weight") || is("res_proj.weight")) {
    spread_ = 0.3f * per_column;
  } else if (is("lm_head.weight")) {
    spread_ = 2 * per_column;
  } else {
    DF_CHECK(is("proj.weight") || is("kv_a_proj_with_mqa.weight"));
    spread_ = is("f_b_proj.weight") ? 0.5f * per_column : per_column;
  }
}

void SynthTensor::FillBytes(uint64_t begin, std::span<std::byte> block) const {
  for (size_t i = 0; i < block.size(); i += 8) {
    uint64_t bits = RandomAt(key_, (begin + i) / 8);
    if (kind_ == Kind::kScales) {
      // Two random bits of each byte b: (b & 1) + (b >> 1 & 1) - 1 is -1, 0, 0 or 1.
      constexpr uint64_t kOnes = 0x0101010101010101u;
      bits = (bits & kOnes) + (bits >> 1 & kOnes) + kOnes * static_cast<uint64_t>(scale_byte_ - 1);
    }
    std::memcpy(block.data() + i, &bits, std::min<size_t>(8, block.size() - i));
  }
}

float SynthTensor::PlainValue(uint64_t index) const {
  const uint64_t col = index % cols_;
  const bool is_mirror = is_paired_ && col % 2 == 1;
  const uint64_t source = is_mirror ? index - 1 : index;
  const float factor =
      row_factor_[index / cols_ % 2] * col_factor_[col % 2] * (is_mirror ? -spread_ : spread_);
  return mean_ + factor * Uniform(RandomAt(key_, source / 4), static_cast<int>(source % 4));
}

template <class Write>
void SynthTensor::FillPlain(uint64_t begin, uint64_t count, Write&& write) const {
  if (cols_ % 4 != 0) {
    for (uint64_t i = 0; i < count; ++i) write(i, PlainValue(begin + i));
    return;
  }
  // The same four at a time, row by row: a tenth of the time.
  for (uint64_t i = 0; i < count;) {
    const uint64_t row = (begin + i) / cols_;
    const uint64_t end = std::min(count, (row + 1) * cols_ - begin);
    const float even = spread_ * row_factor_[row % 2] * col_factor_[0];
    const float odd = spread_ * row_factor_[row % 2] * col_factor_[1];
    for (; i < end; i += 4) {
      const uint64_t bits = RandomAt(key_, (begin + i) / 4);
      write(i, mean_ + even * Uniform(bits, 0));
      write(i + 1, mean_ + (is_paired_ ? -odd * Uniform(bits, 0) : odd * Uniform(bits, 1)));
      write(i + 2, mean_ + even * Uniform(bits, 2));
      write(i + 3, mean_ + (is_paired_ ? -odd * Uniform(bits, 2) : odd * Uniform(bits, 3)));
    }
  }
}

// Of the small tensors of KDA.
double SynthTensor::SpecialValue(uint64_t index, double noise) const {
  constexpr double kTaps[] = {0.1, 0.15, 0.3, 1};  // the last one is the current token's
  if (kind_ == Kind::kConv) return kTaps[index % 4] + 0.05 * noise;
  // The release pads A_log with zeros.
  if (kind_ == Kind::kALog) return index < heads_ ? 0.1 * noise : 0;
  const double head = static_cast<double>(index / head_dim_) / static_cast<double>(heads_);
  const double memory = kShortestMemory * std::pow(kMemoryRange, head);
  // The decay is exp(-5 sigmoid(x)): 5 sigmoid(x) = 1 / memory.
  return -std::log(5 * memory - 1) + 0.1 * noise;
}

void SynthTensor::Fill(uint64_t index, std::span<std::byte> block) const {
  const uint64_t begin_bytes = index * kBlockBytes;
  if (kind_ == Kind::kPacked || kind_ == Kind::kScales) {
    FillBytes(begin_bytes, block);
    return;
  }
  const uint64_t width = static_cast<uint64_t>(DTypeBytes(dtype_));
  const uint64_t begin = begin_bytes / width;
  const uint64_t count = block.size() / width;
  if (dtype_ == DType::kBf16) {
    DF_CHECK(kind_ == Kind::kPlain);
    FillPlain(begin, count, [&](uint64_t i, float value) {
      const uint16_t bits = RoundToBf16(value);
      std::memcpy(block.data() + 2 * i, &bits, sizeof(bits));
    });
    return;
  }
  const auto write = [&](uint64_t i, float value) {
    std::memcpy(block.data() + 4 * i, &value, sizeof(value));
  };
  if (kind_ == Kind::kPlain) {
    FillPlain(begin, count, write);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const double noise = Uniform(RandomAt(key_, begin + i), 0);
    write(i, static_cast<float>(SpecialValue(begin + i, noise)));
  }
}

}  // namespace deltafin
