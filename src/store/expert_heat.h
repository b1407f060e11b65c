// How often each expert is used: learned while running and kept across runs. It decides what is
// kept and what is read first, never what is computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltafin {

// An expert as one number: layer * num_experts + expert.
using ExpertKey = int64_t;

struct ExpertShape {
  int64_t num_layers = 0;  // dense layers included
  int64_t num_experts = 0;

  ExpertKey Key(int64_t layer, int64_t expert) const { return layer * num_experts + expert; }
  int64_t Layer(ExpertKey key) const { return key / num_experts; }
  int64_t num_keys() const { return num_layers * num_experts; }
};

// Uses per pass of every expert, as means over its layer's passes in which a pass counts half as
// much as one that came kHalfLife passes later. Not thread-safe.
class ExpertHeat {
 public:
  // Of 8, 32, 128, 512 and no decay the best or next to it at every budget (docs/experts.md).
  static constexpr double kHalfLife = 128;

  explicit ExpertHeat(ExpertShape shape);

  const ExpertShape& shape() const { return shape_; }
  // One pass of `layer` used `experts`.
  void OnPass(int64_t layer, std::span<const int32_t> experts);
  // 0 to 1; 0 for what was never used.
  float Rate(ExpertKey key) const;
  // At most `count` of those that were used, the most used first.
  std::vector<ExpertKey> Hottest(size_t count) const;
  bool empty() const;  // no pass was seen

  // The bytes of the file MODEL/.deltafin/heat (docs/formats.md).
  std::string Serialize() const;
  // Takes the place of what was learned so far. False, and nothing changes, when `bytes` is not
  // such a file of this shape.
  [[nodiscard]] bool Parse(std::string_view bytes);

 private:
  ExpertShape shape_;
  std::vector<float> values_;   // [num_layers, num_experts]: decayed means that began at 0
  std::vector<float> weights_;  // [num_layers]: what they would be if every pass had used them
};

// Reads the file at `path` into `heat`. False, silently, when there is none or it is not usable.
bool LoadHeat(const std::string& path, ExpertHeat& heat) noexcept;
// Writes `bytes` beside `path` and renames, so that a reader or a crash never sees half a file.
// Creates the folder. False, silently, where it cannot be written: heat is only advice.
bool SaveHeat(const std::string& path, std::string_view bytes) noexcept;

}  // namespace deltafin
