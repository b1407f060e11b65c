// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace deltafin {

// Compact and immutable: the names stand once in one arena, sorted; 497,220 tensors in well under
// 100 MB including the parse.
class ShardIndex {
 public:
  // Throws Error(kCorrupt): not JSON, no weight_map, duplicate tensor, a shard name with a slash.
  static ShardIndex Read(FileSystem& fs, const std::string& path);
  static ShardIndex Parse(std::string json, const std::string& name);

  size_t num_tensors() const { return shard_of_.size(); }
  const std::vector<std::string>& shards() const { return shards_; }  // sorted
  uint64_t total_size() const { return total_size_; }                 // metadata.total_size, 0 if absent
  std::string_view tensor(size_t i) const;
  size_t shard(size_t i) const { return shard_of_[i]; }
  // Index into shards(), or -1 when the tensor is not listed.
  int Find(std::string_view tensor) const;

 private:
  std::string names_;
  std::vector<uint32_t> name_begins_;
  std::vector<uint16_t> shard_of_;
  std::vector<std::string> shards_;
  uint64_t total_size_ = 0;
};

}  // namespace deltafin
