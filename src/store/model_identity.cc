#include "store/model_identity.h"

#include <cstring>

namespace deltafin {

Hash128 IdentityOf(FileSystem& fs, const Checkpoint& checkpoint) {
  constexpr uint64_t kMaxConfigBytes = 16u << 20;
  const std::string config =
      ReadWholeFile(fs, JoinPath(checkpoint.dir(), "config.json"), kMaxConfigBytes);
  std::vector<uint64_t> parts = {Xxh3(std::as_bytes(std::span(config)))};
  for (uint32_t shard = 0; shard < checkpoint.num_shards(); ++shard) {
    const ReadableFile& file = checkpoint.file(shard);
    uint64_t header_bytes = 0;  // little-endian, as safetensors has it (checked when it was opened)
    file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    parts.push_back(file.size());
    parts.push_back(Xxh3OfRange(file, 0, sizeof(header_bytes) + header_bytes));
  }
  return Xxh3Wide(std::as_bytes(std::span(parts)));
}

}  // namespace deltafin
