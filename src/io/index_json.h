// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/name_list.h"

namespace deltafin {

class JsonReader;

// Compact and immutable: the names stand once in one arena, sorted. The file is read in pieces: the
// 497,220 tensors of K3 take 42 MB, 83 MB while they are read (index_json_test.cc measures it).
class ShardIndex {
 public:
  // Throws Error(kCorrupt): not JSON, no weight_map, duplicate tensor, a shard name with a slash,
  // more than 65,535 shards or 1 GiB; Error(kNotFound), Error(kIo).
  static ShardIndex Read(FileSystem& fs, const std::string& path);
  static ShardIndex Parse(const std::string& json, const std::string& name);

  size_t num_tensors() const { return shard_of_.size(); }
  const std::vector<std::string>& shards() const { return shards_; }  // sorted
  uint64_t total_size() const { return total_size_; }  // metadata.total_size, 0 if absent
  std::string_view tensor(size_t i) const { return names_[i]; }
  size_t shard(size_t i) const { return shard_of_[i]; }
  // Index into shards(), or -1 when the tensor is not listed.
  int Find(std::string_view tensor) const;

 private:
  static ShardIndex FromReader(JsonReader& reader, uint64_t json_bytes, const std::string& name);

  NameList names_;  // sorted
  std::vector<uint16_t> shard_of_;
  std::vector<std::string> shards_;
  uint64_t total_size_ = 0;
};

}  // namespace deltafin
