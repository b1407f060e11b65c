// The files of a model folder of which some may be incomplete: what is missing is fetched when it
// is asked for, used at once, and kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/read_queue.h"
#include "store/install_lock.h"
#include "store/presence_map.h"
#include "store/range_source.h"
#include "store/range_writer.h"
#include "store/shard_presence.h"

namespace deltafin {

class Checkpoint;
class RangeFiller;

// How much of a model is on the disk.
struct LocalShare {
  uint64_t expert_bytes = 0;        // of all experts
  uint64_t local_expert_bytes = 0;  // of those that are here
  uint64_t spine_bytes = 0;         // of everything else in shards that are not complete
  uint64_t local_spine_bytes = 0;
  uint64_t missing_bytes() const {
    return expert_bytes - local_expert_bytes + spine_bytes - local_spine_bytes;
  }
};

// Thread-safe. Must outlive the files it opened and the queues it wrapped.
class ModelFiles final : public FileSystem {
 public:
  // `source` may be null: bytes that are missing are then an Error(kNotFound) that says how to get
  // them. `folder_flags`: FolderFlags, for such messages.
  ModelFiles(FileSystem& base, std::shared_ptr<RangeSource> source,
             const std::string& folder_flags);
  ~ModelFiles() override;
  ModelFiles(const ModelFiles&) = delete;
  ModelFiles& operator=(const ModelFiles&) = delete;

  // A shard with holes fetches what ReadAt misses. Throws Error(kIo) too while another process
  // frees or repairs parts of the folder.
  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override;
  bool Exists(const std::string& path) override { return base_.Exists(path); }

  // True when a file that was opened is not complete.
  bool streaming() const;
  // From the source, since the start.
  uint64_t fetched_bytes() const;
  // Ends all fetches, also those that are asked for later: nobody waits for the network any more.
  void EndFetches();
  // Reads of what is missing go to the source, the others to `queue`.
  std::unique_ptr<ReadQueue> Wrap(std::unique_ptr<ReadQueue> queue);
  LocalShare ShareOf(const Checkpoint& checkpoint) const;
  // Lines for people: how much is here, what finishing takes and how; and shards with holes that
  // no presence map explains. None when nothing is missing.
  std::vector<std::string> Reminders(const Checkpoint& checkpoint) const;

 private:
  std::string StreamingLine(const Checkpoint& checkpoint) const;
  std::string HolesLine(const Checkpoint& checkpoint) const;
  struct Folder {
    std::optional<InstallLock> use;
    std::optional<InstallLock> fill;
  };
  Folder& FolderOf(const std::string& shard_path);

  FileSystem& base_;
  const std::shared_ptr<RangeSource> source_;
  const std::string folder_flags_;
  mutable std::mutex mutex_;
  std::map<std::string, Folder> folders_;
  std::map<std::string, std::shared_ptr<ShardPresence>> shards_;  // that are not complete
  std::unique_ptr<RangeFiller> filler_;
};

}  // namespace deltafin
