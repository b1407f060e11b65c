#include "store/model_identity.h"

#include <span>
#include <vector>

#include "store/layout.h"

namespace deltafin {

namespace {

uint64_t HashOfTensor(const Checkpoint& checkpoint, const LayerLayout& layout, SpineVector id) {
  for (const VectorSpec& vector : layout.vectors) {
    if (vector.id != id) continue;
    const Extent extent = checkpoint.Find(vector.tensor);
    return Xxh3OfRange(checkpoint.file(extent.shard), extent.offset, extent.bytes);
  }
  return 0;  // a dense layer has no router
}

}  // namespace

Hash128 IdentityOf(FileSystem& fs, const Checkpoint& checkpoint) {
  constexpr uint64_t kMaxFileBytes = 64u << 20;
  std::vector<uint64_t> parts;
  for (const char* name : {"config.json", "tiktoken.model", "tokenizer_config.json"}) {
    const std::string path = JoinPath(checkpoint.dir(), name);
    const std::string bytes = fs.Exists(path) ? ReadWholeFile(fs, path, kMaxFileBytes) : "";
    parts.push_back(Xxh3(std::as_bytes(std::span(bytes))));
  }
  for (uint32_t shard = 0; shard < checkpoint.num_shards(); ++shard) {
    const ReadableFile& file = checkpoint.file(shard);
    uint64_t header_bytes = 0;  // little-endian, as safetensors has it (checked when it was opened)
    file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    parts.push_back(file.size());
    parts.push_back(Xxh3OfRange(file, 0, sizeof(header_bytes) + header_bytes));
  }
  const ModelConfig& config = checkpoint.config();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    parts.push_back(
        HashOfTensor(checkpoint, LayoutOfLayer(config, layer), SpineVector::kRouterBias));
  }
  parts.push_back(HashOfTensor(checkpoint, LayoutOfTop(config), SpineVector::kFinalNorm));
  return Xxh3Wide(std::as_bytes(std::span(parts)));
}

}  // namespace deltafin
