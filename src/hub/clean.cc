// deltafin clean: gives disk space back, the experts that are used least first.
#include <algorithm>
#include <map>
#include <vector>

#include "base/format.h"
#include "deltafin/hub.h"
#include "hub/model_folder.h"
#include "hub/shard_headers.h"
#include "io/file.h"
#include "store/expert_heat.h"
#include "store/joined_folders.h"
#include "store/model_config.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

struct CachedExpert {
  FolderShard* shard = nullptr;
  ByteRange range;
  uint64_t local_bytes = 0;
  float rate = 0;  // how often it is used
};

ExpertHeat HeatOf(const std::string& dir) {
  const std::string path = JoinPath(dir, "config.json");
  const ModelConfig config =
      ModelConfig::Parse(ReadWholeFile(RealFileSystem(), path, kMaxConfigBytes), path);
  ExpertHeat heat({config.num_layers, config.num_experts});
  // Without a file every expert is as cold as the others.
  (void)LoadHeat(JoinPath(dir, ".deltafin/heat"), heat);
  return heat;
}

// Of shards that setup has made: others are the user's own.
std::vector<FolderShard> ManagedShards(const std::vector<std::string>& folders) {
  std::vector<FolderShard> shards;
  for (const std::string& name : ShardNames(folders[0])) {
    const auto folder = FolderWith(RealFileSystem(), folders, name);
    if (!folder) continue;
    const auto presence =
        ShardPresence::OpenForReading(RealFileSystem(), JoinPath(folders[*folder], name));
    if (presence == nullptr) continue;
    shards.push_back(
        FindShard({name, presence->file_bytes(), presence->sha256(), ""}, {folders[*folder]}));
  }
  return shards;
}

std::vector<CachedExpert> CachedExperts(std::vector<FolderShard>& shards, const ExpertHeat& heat) {
  std::vector<CachedExpert> experts;
  for (FolderShard& shard : shards) {
    if (!ReadLocalHeader(shard)) continue;
    for (const FetchUnit& unit : shard.units) {
      if (unit.kind != UnitKind::kExpert) continue;
      const uint64_t local = unit.range.bytes - shard.MissingBytes(unit.range);
      if (local == 0) continue;
      const bool known =
          unit.layer < heat.shape().num_layers && unit.expert < heat.shape().num_experts;
      experts.push_back({&shard, unit.range, local,
                         known ? heat.Rate(heat.shape().Key(unit.layer, unit.expert)) : 0});
    }
  }
  return experts;
}

}  // namespace

CleanReport RunClean(const CleanOptions& options) {
  const std::vector<std::string> folders = ModelFolders(options.dir, options.also);
  CheckShardFolders(options.also);
  const ExpertHeat heat = HeatOf(options.dir);  // in a folder of something else nothing is made
  std::vector<InstallLock> locks;
  if (!options.dry_run) {
    for (const std::string& folder : folders) locks.push_back(InstallLock::Own(folder));
  }
  std::vector<FolderShard> shards = ManagedShards(folders);
  std::vector<CachedExpert> experts = CachedExperts(shards, heat);
  // The last of a shard first among those that are as cold.
  std::stable_sort(experts.begin(), experts.end(), [](const auto& a, const auto& b) {
    return a.rate != b.rate ? a.rate < b.rate : a.range.offset > b.range.offset;
  });

  CleanReport report;
  for (const CachedExpert& expert : experts) report.local_bytes += expert.local_bytes;
  std::map<FolderShard*, std::vector<ByteRange>> to_free;
  for (const CachedExpert& expert : experts) {
    if (report.local_bytes - report.freed_bytes <= options.keep_bytes) break;
    report.freed_bytes += expert.local_bytes;
    ++report.freed_experts;
    to_free[expert.shard].push_back(expert.range);
  }
  if (options.dry_run) return report;
  for (FolderShard& shard : shards) {
    BeginShard(shard);
    // The journal first: what is recorded must be there.
    if (const auto it = to_free.find(&shard); it != to_free.end()) {
      (void)shard.presence->Forget(it->second);
    }
    // Also what a run that was killed has left.
    for (const ByteRange& gap : shard.presence->Missing({0, shard.remote.bytes})) {
      shard.presence->file().PunchHole(gap.offset, gap.bytes);
    }
  }
  return report;
}

}  // namespace deltafin
