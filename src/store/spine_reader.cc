#include "store/spine_reader.h"

#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {
namespace {

constexpr int64_t kFloatsPerLine = 16;  // of 64 bytes

void Widen(const std::byte* bytes, DType dtype, int64_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, bytes, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  DF_CHECK(dtype == DType::kBf16);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + i * 2, sizeof(bits));
    out[i] = Bf16ToFloat(bits);
  }
}

// The first `count` values of a tensor.
void ReadWidened(const Checkpoint& checkpoint, const TensorSpec& spec, int64_t count,
                 std::vector<std::byte>& scratch, float* out) {
  const Extent extent = checkpoint.Find(spec);
  scratch.resize(static_cast<size_t>(count * DTypeBytes(spec.dtype)));
  DF_CHECK(scratch.size() <= extent.bytes);
  checkpoint.file(extent.shard).ReadAt(extent.offset, scratch);
  Widen(scratch.data(), spec.dtype, count, out);
}

}  // namespace

SpineVectors::SpineVectors(const Checkpoint& checkpoint, const LayerLayout& layout) {
  int64_t total = 0;
  for (const VectorSpec& spec : layout.vectors) {
    total += (spec.size + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }
  values_ = AlignedBuffer<float>(static_cast<size_t>(total));
  std::vector<std::byte> scratch;
  std::vector<float> projection;
  float* next = values_.data();
  for (const VectorSpec& spec : layout.vectors) {
    ReadWidened(checkpoint, spec.tensor, spec.size, scratch, next);
    bytes_read_ += scratch.size();
    if (!spec.second.name.empty()) {
      projection.resize(static_cast<size_t>(spec.size));
      ReadWidened(checkpoint, spec.second, spec.size, scratch, projection.data());
      bytes_read_ += scratch.size();
      for (int64_t i = 0; i < spec.size; ++i) next[i] *= projection[static_cast<size_t>(i)];
    }
    begins_[static_cast<size_t>(spec.id)] = next;
    next += (spec.size + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }
}

const float* SpineVectors::Get(SpineVector id) const {
  const float* begin = begins_[static_cast<size_t>(id)];
  DF_CHECK(begin != nullptr);
  return begin;
}

LayerLayout LayoutOfSpine(const ModelConfig& config, int64_t layer) {
  DF_CHECK(0 <= layer && layer <= config.num_layers);
  return layer < config.num_layers ? LayoutOfLayer(config, layer) : LayoutOfTop(config);
}

uint64_t EmbeddingRowBytes(const ModelConfig& config) {
  const DType dtype = LayoutOfEmbedding(config).dtype;
  return static_cast<uint64_t>(config.hidden_size * DTypeBytes(dtype));
}

void ReadEmbeddingRows(const Checkpoint& checkpoint, std::span<const TokenId> tokens, float* out) {
  const ModelConfig& config = checkpoint.config();
  for (TokenId token : tokens) {
    if (0 <= token && token < config.vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("token id {} is outside the vocabulary, expected 0 to {}", token,
                       config.vocab_size - 1));
  }
  const TensorSpec spec = LayoutOfEmbedding(config);
  const Extent extent = checkpoint.Find(spec);
  const ReadableFile& file = checkpoint.file(extent.shard);
  std::vector<std::byte> row(EmbeddingRowBytes(config));
  for (TokenId token : tokens) {
    file.ReadAt(extent.offset + static_cast<uint64_t>(token) * row.size(), row);
    Widen(row.data(), spec.dtype, config.hidden_size, out);
    out += config.hidden_size;
  }
}

}  // namespace deltafin
