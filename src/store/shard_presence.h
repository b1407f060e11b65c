// A shard that may not be complete: what of it is there, and how more comes to it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/sparse_file.h"
#include "store/presence_file.h"
#include "store/presence_map.h"

namespace deltafin {

// Thread-safe. Throws Error(kIo) or Error(kNoSpace).
class ShardPresence {
 public:
  // Null when the shard has no journal: it is complete then, or not from here.
  static std::unique_ptr<ShardPresence> OpenForReading(FileSystem& fs,
                                                       const std::string& shard_path);
  // Creates what is missing, repairs a torn journal and shortens a long one. One writer at a time
  // (InstallLock). What was recorded for a file of another size or SHA-256 does not count; "" is a
  // SHA-256 that is not known.
  static std::unique_ptr<ShardPresence> OpenForWriting(FileSystem& fs,
                                                       const std::string& shard_path,
                                                       uint64_t file_bytes,
                                                       const std::string& sha256);

  const std::string& path() const { return path_; }
  const std::string& sha256() const { return sha256_; }
  uint64_t file_bytes() const { return file_bytes_; }
  bool can_write() const { return file_ != nullptr; }

  bool Contains(ByteRange range) const;
  std::vector<ByteRange> Missing(ByteRange range) const;
  std::vector<PresentRange> Ranges() const;
  uint64_t present_bytes() const;
  bool complete() const;
  // The SHA-256 of the whole file was compared.
  bool verified() const;
  // Takes over what another process has recorded since. Only for readers.
  void Refresh(FileSystem& fs);

  // The rest is for writers.
  SparseFile& file() { return *file_; }
  // The range was written and may be read by this process; a crash may still lose it. False when a
  // part of it was present already.
  bool MarkReadable(const PresentRange& range);
  // Brings the file to the disk, then the record of these ranges, which were marked before. When
  // that fails they are not present.
  void Record(std::span<const PresentRange> ranges);
  // Records that ranges with a byte in common with one of these are not present any more. Returns
  // them.
  std::vector<PresentRange> Forget(std::span<const ByteRange> ranges);
  std::vector<PresentRange> Forget(ByteRange range) { return Forget({&range, 1}); }
  void RecordVerified();

 private:
  ShardPresence(std::string path, PresenceContent content);
  void Append(PresenceRecord kind, std::span<const PresentRange> ranges);

  const std::string path_;
  const std::string sha256_;
  const uint64_t file_bytes_;
  std::unique_ptr<SparseFile> file_;

  mutable std::mutex mutex_;  // of the map
  PresenceMap map_;
  bool verified_ = false;
  uint64_t journal_bytes_read_ = 0;

  std::mutex journal_mutex_;  // taken before mutex_
  std::unique_ptr<JournalFile> journal_;
};

}  // namespace deltafin
