// Writes checkpoints in the layout of the release (spec section 2): one layer per shard, then the
// top; headers and index complete, weights absent (holes of the right size).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/layout.h"
#include "store/model_config.h"

namespace deltafin {

// The tensors of one shard file, in the order of their bytes.
struct ShardPlan {
  std::string file_name;  // "model-00001-of-000094.safetensors"
  std::vector<TensorSpec> tensors;
};

// One shard for each layer and one for the top and the embedding. No vision.
int64_t NumShards(const ModelConfig& config);
// Shard 0 .. NumShards - 1. A_log is padded as the release does; the experts are in the order of
// their numbers as decimal strings.
ShardPlan PlanShard(const ModelConfig& config, int64_t shard);

// The beginning of the shard's file: header length and header. The data follow without gaps.
std::string SafetensorsHead(const ShardPlan& plan);
uint64_t DataBytes(const ShardPlan& plan);

// Writes config.json (with the text `config_json`, from which `config` was parsed), the index and
// sparse shard files of their true size into the folder `dir`, which must exist. Throws Error(kIo).
void WriteSkeleton(const ModelConfig& config, const std::string& config_json,
                   const std::string& dir);

}  // namespace deltafin
