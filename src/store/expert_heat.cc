#include "store/expert_heat.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/hash.h"

namespace deltafin {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr char kHeatMagic[8] = {'D', 'F', 'H', 'E', 'A', 'T', '0', '1'};
constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;

struct Header {
  char magic[8];
  uint32_t num_layers;
  uint32_t num_experts;
};

template <class T>
void AppendArray(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

bool AreRates(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return v >= 0 && v <= 1; });
}

}  // namespace

ExpertHeat::ExpertHeat(ExpertShape shape)
    : shape_(shape),
      values_(static_cast<size_t>(shape.num_keys())),
      weights_(static_cast<size_t>(shape.num_layers)) {}

void ExpertHeat::OnPass(int64_t layer, std::span<const int32_t> experts) {
  static const float kKept = static_cast<float>(std::exp2(-1 / kHalfLife));
  float* values = &values_[static_cast<size_t>(shape_.Key(layer, 0))];
  for (int64_t expert = 0; expert < shape_.num_experts; ++expert) values[expert] *= kKept;
  for (int32_t expert : experts) values[expert] = std::min(1.0f, values[expert] + (1 - kKept));
  float& weight = weights_[static_cast<size_t>(layer)];
  weight = std::min(1.0f, weight * kKept + (1 - kKept));
}

float ExpertHeat::Rate(ExpertKey key) const {
  const float weight = weights_[static_cast<size_t>(shape_.Layer(key))];
  return weight > 0 ? std::min(1.0f, values_[static_cast<size_t>(key)] / weight) : 0;
}

std::vector<ExpertKey> ExpertHeat::Hottest(size_t count) const {
  std::vector<std::pair<float, ExpertKey>> used;
  for (ExpertKey key = 0; key < shape_.num_keys(); ++key) {
    if (const float rate = Rate(key); rate > 0) used.emplace_back(-rate, key);
  }
  count = std::min(count, used.size());
  std::partial_sort(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(count), used.end());
  std::vector<ExpertKey> hottest;
  for (size_t i = 0; i < count; ++i) hottest.push_back(used[i].second);
  return hottest;
}

bool ExpertHeat::empty() const {
  return std::all_of(weights_.begin(), weights_.end(), [](float w) { return w == 0; });
}

std::string ExpertHeat::Serialize() const {
  Header header = {};
  std::memcpy(header.magic, kHeatMagic, sizeof(kHeatMagic));
  header.num_layers = static_cast<uint32_t>(shape_.num_layers);
  header.num_experts = static_cast<uint32_t>(shape_.num_experts);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  AppendArray(bytes, weights_);
  AppendArray(bytes, values_);
  const uint64_t checksum = Xxh3(std::as_bytes(std::span(bytes)));
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes;
}

bool ExpertHeat::Parse(std::string_view bytes) {
  const size_t body =
      sizeof(Header) + weights_.size() * sizeof(float) + values_.size() * sizeof(float);
  uint64_t checksum = 0;
  if (bytes.size() != body + sizeof(checksum)) return false;
  std::memcpy(&checksum, bytes.data() + body, sizeof(checksum));
  if (checksum != Xxh3(std::as_bytes(std::span(bytes.data(), body)))) return false;
  Header header = {};
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kHeatMagic, sizeof(kHeatMagic)) != 0) return false;
  if (header.num_layers != shape_.num_layers || header.num_experts != shape_.num_experts) {
    return false;
  }
  ExpertHeat read(shape_);
  const char* next = bytes.data() + sizeof(header);
  std::memcpy(read.weights_.data(), next, weights_.size() * sizeof(float));
  next += weights_.size() * sizeof(float);
  std::memcpy(read.values_.data(), next, values_.size() * sizeof(float));
  if (!AreRates(read.weights_) || !AreRates(read.values_)) return false;
  *this = std::move(read);
  return true;
}

bool LoadHeat(const std::string& path, ExpertHeat& heat) noexcept {
  try {
    if (!RealFileSystem().Exists(path)) return false;
    return heat.Parse(ReadWholeFile(RealFileSystem(), path, kMaxFileBytes));
  } catch (const std::exception&) {
    return false;
  }
}

bool SaveHeat(const std::string& path, std::string_view bytes) noexcept {
  try {
    MakeFolders(std::filesystem::path(path).parent_path().string());
    AtomicFile file(path);
    file.WriteAt(0, std::as_bytes(std::span(bytes)));
    file.CommitUnsynced();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace deltafin
