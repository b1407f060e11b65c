// A read queue over files that may be incomplete. Internal to the store.
#pragma once

#include <memory>

#include "io/read_queue.h"
#include "store/range_filler.h"

namespace deltafin {

// A file that may have holes.
class StreamedFile final : public ReadableFile {
 public:
  StreamedFile(FileSystem& fs, std::unique_ptr<ReadableFile> file,
               std::shared_ptr<ShardPresence> shard, RangeFiller& filler);

  // Fetches what is missing.
  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override;
  uint64_t size() const override { return file_->size(); }
  const std::string& path() const override { return file_->path(); }
  bool Holds(uint64_t offset, uint64_t bytes) const override {
    return Missing({offset, bytes}).empty();
  }
  // For the queue, which knows that the range is there.
  void ReadDirect(uint64_t offset, std::span<std::byte> dst, size_t needed) const override {
    file_->ReadDirect(offset, dst, needed);
  }
  int Descriptor(ReadMode mode) const override { return file_->Descriptor(mode); }

  const std::shared_ptr<ShardPresence>& shard() const { return shard_; }
  // What is missing now, also after a look at what another process may have brought.
  std::vector<ByteRange> Missing(ByteRange range) const;
  // Reads the parts of [offset, offset + dst.size()) that are not in `gaps`.
  void ReadAround(const std::vector<ByteRange>& gaps, uint64_t offset,
                  std::span<std::byte> dst) const;

 private:
  FileSystem& fs_;
  const std::unique_ptr<ReadableFile> file_;
  const std::shared_ptr<ShardPresence> shard_;
  RangeFiller& filler_;
};

// Reads of what is missing go to `filler`, which must outlive the queue; all others to `queue`.
std::unique_ptr<ReadQueue> MakeStreamedReadQueue(std::unique_ptr<ReadQueue> queue,
                                                 RangeFiller& filler);

}  // namespace deltafin
