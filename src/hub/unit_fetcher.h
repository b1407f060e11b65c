// Fetches units into their shards: the heart of setup.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/captured_error.h"
#include "hub/hub_client.h"
#include "hub/model_folder.h"
#include "hub/write_behind.h"
#include "store/range_writer.h"

namespace deltafin {

struct FetchPiece {
  FolderShard* shard = nullptr;  // begun
  ByteRange range;               // missing
  int layer = -1;
};

class UnitFetcher final : private RangeListener {
 public:
  struct Status {
    uint64_t done_bytes = 0;  // since the beginning
    const FolderShard* shard = nullptr;
    int layer = -1;
  };
  enum class Outcome : uint8_t { kDone, kStopped, kDiskFull };

  // Both must outlive it.
  UnitFetcher(HubClient& client, Committer& committer) : client_(client), behind_(committer) {}
  // Ends what is under way.
  ~UnitFetcher() override { client_.Drop(this); }

  // Fetches all of them in order, as many at a time as there are connections, and calls `tick`
  // several times a second; false ends it. However it ends, the committer has what came: also the
  // beginning of pieces that were under way. Throws the first error that is not a full disk.
  Outcome Run(std::vector<FetchPiece> pieces, const std::function<bool(const Status&)>& tick);

  uint64_t done_bytes() const;

 private:
  struct Active {
    FetchPiece piece;
    std::optional<WriteBehind::Range> writer;  // once the first byte came
  };

  void OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) override;
  void OnRangeDone(uint64_t tag) noexcept override;
  void OnRangeFailed(uint64_t tag, std::exception_ptr error) noexcept override;
  void Refill(std::vector<FetchPiece>& pieces, size_t& next);
  std::unique_ptr<Active> Take(uint64_t tag);
  void NoteError(const std::exception_ptr& error);

  HubClient& client_;
  WriteBehind behind_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::unique_ptr<Active>> active_;
  uint64_t active_bytes_ = 0;
  uint64_t next_tag_ = 0;
  Status status_;
  bool disk_full_ = false;
  std::optional<CapturedError> error_;
};

}  // namespace deltafin
