// A model folder: its configuration and where every tensor lies. Reads no weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/matrix.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "store/layout.h"
#include "store/model_config.h"

namespace deltafin {

// Bytes [offset, offset + bytes) of shard number `shard`.
struct Extent {
  uint32_t shard = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Immutable after Open. Thread-safe.
class Checkpoint {
 public:
  // Reads config.json, the index and every shard's header, and checks all of it against the layout:
  // every text tensor present once, with the right dtype and shape, where the index says it is, and
  // the six tensors of an expert back to back as one span. Throws Error naming file, tensor,
  // expected and got. Tensors that text does not use (vision) are ignored; a text tensor that K3
  // does not have (a bias, say) is refused. Shards that hold no text must be there too.
  static std::unique_ptr<Checkpoint> Open(FileSystem& fs, const std::string& dir);

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }

  size_t num_shards() const { return files_.size(); }
  const ReadableFile& file(uint32_t shard) const { return *files_[shard]; }
  // Whether anything of this shard is ever read.
  bool HoldsText(uint32_t shard) const { return holds_text_[shard]; }
  uint64_t total_bytes() const { return total_bytes_; }  // of all shard files

  // Where a tensor lies; the dtype and shape are those of its spec. Throws Error(kNotFound).
  Extent Find(const TensorSpec& spec) const;
  // The span of an expert: 6 tensors back to back.
  Extent ExpertSpan(int64_t layer, int64_t expert) const;
  // Bytes of every span; the same for all experts.
  uint64_t expert_bytes() const { return expert_bytes_; }
  // The parts of a span: views of `span`, which holds expert_bytes() bytes.
  ExpertWeights ViewExpert(const std::byte* span) const;

 private:
  class Opener;
  // Where a spine tensor lies and what it is. The experts' headers are not kept: they are 99 % of a
  // release's 497,220 tensors, and their spans say all.
  struct Located {
    Extent extent;
    DType dtype = DType::kBf16;
    TensorShape shape;
  };
  Checkpoint() = default;

  std::string dir_;
  ModelConfig config_;
  std::vector<std::unique_ptr<ReadableFile>> files_;
  std::vector<bool> holds_text_;  // of each file
  std::map<std::string, Located, std::less<>> spine_;
  std::vector<Extent> expert_spans_;  // [num_layers, num_experts]; empty for dense layers
  uint64_t expert_part_begins_[kExpertParts] = {};  // within a span
  uint64_t expert_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace deltafin
