// deltafin verify: what is on the disk against what was recorded, and against the hub.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "deltafin/hub.h"
#include "hub/model_folder.h"
#include "hub/progress_meter.h"
#include "hub/setup.h"
#include "hub/shard_check.h"
#include "hub/shard_headers.h"
#include "hub/source_file.h"
#include "io/file.h"
#include "io/hash.h"
#include "store/joined_folders.h"

namespace deltafin {
namespace {

using Clock = std::chrono::steady_clock;

class Verification {
 public:
  explicit Verification(const VerifyOptions& options)
      : options_(options), folders_(ModelFolders(options.dir, options.also)) {
    CheckShardFolders(options.also);
  }

  VerifyReport Run() {
    if (options_.repair) {
      for (const std::string& folder : folders_) locks_.push_back(InstallLock::Own(folder));
    }
    source_ = ReadSourceInfo(options_.dir);
    CheckSmallFiles();
    FindShards();
    for (FolderShard& shard : shards_) Check(shard);
    report_.num_shards = static_cast<int>(shards_.size());
    const bool anything_bad = report_.bad_bytes > 0 || damaged_small_;
    if (options_.repair && anything_bad) Repair();
    return report_;
  }

 private:
  void Problem(const std::string& problem) { report_.problems.push_back(problem); }

  void CheckSmallFiles() {
    if (!source_) return;
    for (const SmallFile& small : kSmallFiles) {
      const RemoteFile* file = source_->Find(small.name);
      if (file == nullptr) continue;
      const std::string path = JoinPath(options_.dir, small.name);
      if (!RealFileSystem().Exists(path)) {
        Problem(path + ": is missing");
        damaged_small_ = true;
        bad_index_ = bad_index_ || file->name == kIndexFile;
        continue;
      }
      const auto opened = RealFileSystem().OpenForReading(path);
      const bool right = opened->size() == file->bytes &&
                         (file->sha256.empty() || Sha256OfFile(*opened) == file->sha256);
      if (right) continue;
      Problem(format("{}: is not the hub's file", path));
      damaged_small_ = true;
      bad_index_ = bad_index_ || file->name == kIndexFile;
      report_.bad_bytes += file->bytes;
    }
  }

  // What the index lists; where that is damaged, all that setup knew of.
  std::vector<std::string> NamesOfShards() {
    if (!source_) return ShardNames(options_.dir);
    if (!bad_index_) {
      try {
        return ShardNames(options_.dir);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        Problem(error.what());
        damaged_small_ = true;
      }
    }
    std::vector<std::string> names;
    for (const RemoteFile& file : source_->files) {
      if (file.name.ends_with(".safetensors")) names.push_back(file.name);
    }
    return names;
  }

  // What the source says, or, in a folder that is not from setup, what is there.
  void FindShards() {
    for (const std::string& name : NamesOfShards()) {
      RemoteFile remote;
      remote.name = name;
      if (source_ && source_->Find(name) != nullptr) {
        remote = *source_->Find(name);
      } else {
        const auto folder = FolderWith(RealFileSystem(), folders_, name);
        if (folder) {
          const std::string path = JoinPath(folders_[*folder], name);
          remote.bytes = RealFileSystem().OpenForReading(path)->size();
        }
      }
      shards_.push_back(FindShard(remote, folders_));
    }
    for (const FolderShard& shard : shards_) {
      report_.total_bytes += shard.remote.bytes;
      report_.local_bytes += shard.local_bytes();
    }
  }

  void Check(FolderShard& shard) {
    const std::string& name = shard.path.empty() ? shard.remote.name : shard.path;
    name_ = shard.remote.name;
    if (shard.path.empty()) {
      if (!source_) Problem(name + ": is missing; deltafin setup fetches it");
      return;  // else not begun: that is no damage
    }
    const uint64_t bytes = RealFileSystem().OpenForReading(shard.path)->size();
    if (bytes != shard.remote.bytes) {
      Problem(format("{}: has {} bytes, expected {}", name, bytes, shard.remote.bytes));
      CutOff(shard, bytes);
      return;
    }
    try {
      (void)ReadLocalHeader(shard);
    } catch (const Error& error) {
      Problem(error.what());
      // Without a journal nothing else speaks for the rest of it.
      Bad(shard, {0, shard.whole ? shard.remote.bytes : 8});
    }
    std::vector<PresentRange> bad;
    if (shard.presence != nullptr) {
      const bool quick = options_.depth == VerifyOptions::Depth::kQuick;
      bad = quick ? HollowRanges(shard) : DamagedRanges(shard, Progress());
    }
    for (const PresentRange& range : bad) {
      Problem(format("{}: bytes {} to {} are not what was written", name, range.offset,
                     range.end() - 1));
      Bad(shard, {range.offset, range.bytes});
    }
    if (!shard.complete()) return;
    ++report_.complete_shards;
    if (options_.depth == VerifyOptions::Depth::kFull && bad.empty()) CheckWhole(shard);
  }

  // Of a file that has become too short, what it had; without a journal, all of it.
  void CutOff(FolderShard& shard, uint64_t bytes) {
    const std::optional<PresenceContent> content = ReadPresence(RealFileSystem(), shard.path);
    if (!content || content->map.file_bytes() != shard.remote.bytes) {
      Bad(shard, {0, shard.remote.bytes});
      return;
    }
    for (const PresentRange& range : content->map.ranges()) {
      if (range.end() > bytes) Bad(shard, {range.offset, range.bytes});
    }
  }

  void CheckWhole(FolderShard& shard) {
    if (shard.remote.sha256.empty()) return;
    const auto progress = Progress();
    const std::vector<FetchUnit> whole = {{{0, shard.remote.bytes}, UnitKind::kOther, -1, -1}};
    const std::string sha256 = HashShard(shard.path, whole, progress).sha256;
    ++report_.hashed_shards;
    if (sha256 == shard.remote.sha256) return;
    Problem(format("{}: its SHA-256 is {}, expected {}", shard.path, sha256, shard.remote.sha256));
    Bad(shard, {0, shard.remote.bytes});
  }

  // Counts bad bytes and, for a repair, lets them count as missing.
  void Bad(FolderShard& shard, ByteRange range) {
    if (!options_.repair) {
      report_.bad_bytes += range.bytes;
      return;
    }
    if (shard.presence == nullptr || !shard.presence->can_write()) BeginShard(shard);
    uint64_t bytes = 0;
    std::vector<ByteRange>& bad = bad_ranges_[shard.remote.name];
    bad.push_back(range);
    for (const PresentRange& gone : shard.presence->Forget(range)) {
      bytes += gone.bytes;
      bad.push_back({gone.offset, gone.bytes});
    }
    report_.bad_bytes += std::max(bytes, range.bytes);
  }

  // Fetches exactly what was bad.
  void Repair() {
    shards_.clear();  // there is one writer of a shard
    locks_.clear();
    SetupOptions setup;
    setup.hub = options_.hub;
    setup.dir = options_.dir;
    setup.also = options_.also;
    setup.mode = SetupMode::kStream;
    setup.only_experts = true;
    setup.verify = options_.depth == VerifyOptions::Depth::kFull;
    setup.on_progress = options_.on_progress;
    report_.repaired_bytes = Setup(setup, std::move(bad_ranges_)).Run().fetched_bytes;
    report_.repaired = true;
  }

  CheckProgress Progress() {
    return [this](uint64_t bytes) {
      report_.checked_bytes += bytes;
      const auto now = Clock::now();
      if (!options_.on_progress || now - last_tick_ < kProgressEvery) return true;
      last_tick_ = now;
      SetupProgress progress;
      progress.phase = "verifying";
      progress.done_bytes = report_.checked_bytes;
      progress.total_bytes = report_.local_bytes;
      progress.local_bytes = report_.local_bytes;
      progress.shard_bytes = report_.total_bytes;
      progress.shard = name_;
      progress.seconds = std::chrono::duration<double>(now - start_).count();
      if (progress.seconds > 0) {
        progress.bytes_per_second = static_cast<double>(progress.done_bytes) / progress.seconds;
      }
      return options_.on_progress(progress);
    };
  }

  const VerifyOptions options_;
  const std::vector<std::string> folders_;
  std::vector<InstallLock> locks_;
  std::optional<SourceInfo> source_;
  std::vector<FolderShard> shards_;
  VerifyReport report_;
  bool damaged_small_ = false;
  bool bad_index_ = false;
  std::map<std::string, std::vector<ByteRange>> bad_ranges_;
  std::string name_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_tick_{};
};

}  // namespace

VerifyReport RunVerify(const VerifyOptions& options) { return Verification(options).Run(); }

}  // namespace deltafin
