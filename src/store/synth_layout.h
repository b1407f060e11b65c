// Which tensors stand in which shard of a checkpoint in the layout of the release (spec section 2):
// one layer per shard, then the top, then vision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/layout.h"
#include "store/model_config.h"

namespace deltafin {

// The tensors of one shard file, in the order of their bytes.
struct ShardPlan {
  std::string file_name;  // "model-00001-of-000096.safetensors"
  std::vector<TensorSpec> tensors;
  bool is_vision = false;  // nothing of it is read
};

// Whether the two shards that text does not use (projector, vision tower) are there.
enum class VisionShards : uint8_t { kAbsent, kPresent };

// One shard for each layer, one for the embedding and the top, and vision.
int64_t NumShards(const ModelConfig& config, VisionShards vision = VisionShards::kAbsent);
// Shard 0 .. NumShards - 1. A_log is padded as the release does; the experts are in the order of
// their numbers as decimal strings.
ShardPlan PlanShard(const ModelConfig& config, int64_t shard,
                    VisionShards vision = VisionShards::kAbsent);

uint64_t TensorBytes(const TensorSpec& spec);
uint64_t DataBytes(const ShardPlan& plan);
// The beginning of the shard's file: header length and header. The data follow without gaps.
std::string SafetensorsHead(const ShardPlan& plan);

// The text of model.safetensors.index.json.
std::string IndexJson(const ModelConfig& config, VisionShards vision);

}  // namespace deltafin
