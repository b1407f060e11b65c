#include "store/testing/skeleton.h"

#include <span>

#include "io/file.h"
#include "io/write_file.h"

namespace deltafin {

void WriteSkeleton(const ModelConfig& config, const std::string& config_json,
                   const std::string& dir) {
  for (int64_t shard = 0; shard < NumShards(config); ++shard) {
    const ShardPlan plan = PlanShard(config, shard);
    const std::string head = SafetensorsHead(plan);
    NewFile file(JoinPath(dir, plan.file_name), head.size() + DataBytes(plan));
    file.WriteAt(0, std::as_bytes(std::span(head)));
    file.Commit();
  }
  WriteFileAtomically(JoinPath(dir, "model.safetensors.index.json"),
                      IndexJson(config, VisionShards::kAbsent));
  WriteFileAtomically(JoinPath(dir, "config.json"), config_json);
}

}  // namespace deltafin
