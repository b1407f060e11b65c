#include "store/range_filler.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/atomic_file.h"

namespace deltafin {
namespace {

// The disk is not filled to the brim: others live on it too. Less for small models.
constexpr uint64_t kMaxReserveBytes = uint64_t{2} << 30;
constexpr uint64_t kReservedShards = 4;
constexpr uint64_t kCheckSpaceEvery = uint64_t{64} << 20;

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::exception_ptr NoSource(const ShardPresence& shard, ByteRange range,
                            const std::string& folder_flags) {
  return std::make_exception_ptr(
      Error(ErrorCode::kNotFound,
            format("{}: bytes {} to {} are not on this disk, and nothing may be fetched now; run: "
                   "deltafin setup {}",
                   shard.path(), range.offset, range.end() - 1, folder_flags)));
}

}  // namespace

RangeFiller::RangeFiller(std::shared_ptr<RangeSource> source, std::string folder_flags)
    : source_(std::move(source)),
      folder_flags_(std::move(folder_flags)),
      unchecked_bytes_(kCheckSpaceEvery) {}

RangeFiller::~RangeFiller() { DropAll(); }

void RangeFiller::DropAll() {
  if (source_ != nullptr) source_->Drop(this);
}

void RangeFiller::Close() {
  closed_ = true;
  DropAll();
}

std::vector<uint64_t> RangeFiller::Start(std::vector<Fetch> fetches) {
  std::vector<uint64_t> ids;
  std::vector<RangeRequest> requests;
  for (Fetch& fetch : fetches) {
    if (source_ == nullptr) {
      ids.push_back(0);
      fetch.done(NoSource(*fetch.shard, fetch.range, folder_flags_));
      continue;
    }
    auto active = std::make_unique<Active>();
    active->fetch = std::move(fetch);
    const Fetch& f = active->fetch;
    if (f.shard->can_write() && MayKeep(*f.shard, f.range.bytes)) {
      active->writer.emplace(*f.shard, f.range.offset);
    }
    const std::lock_guard lock(mutex_);
    const uint64_t id = next_id_++;
    ids.push_back(id);
    requests.push_back({std::filesystem::path(f.shard->path()).filename().string(),
                        f.shard->file_bytes(), f.range, f.priority, id, this});
    active_.emplace(id, std::move(active));
  }
  try {
    if (!requests.empty()) source_->Fetch(requests);
  } catch (...) {
    for (const RangeRequest& request : requests) {
      OnRangeFailed(request.tag, std::current_exception());
    }
  }
  if (closed_) DropAll();
  return ids;
}

bool RangeFiller::Cancel(uint64_t id) {
  if (source_ == nullptr || !source_->Cancel(this, id)) return false;
  Take(id);
  return true;
}

void RangeFiller::Promote(uint64_t id) {
  if (source_ != nullptr) source_->Promote(this, id);
}

// Looks at the disk now and then, so that it is never filled by more than that.
bool RangeFiller::MayKeep(const ShardPresence& shard, uint64_t bytes) {
  if (unchecked_bytes_ + bytes > kCheckSpaceEvery) {
    unchecked_bytes_ = 0;
    try {
      has_space_ = FreeDiskBytes(FolderOf(shard.path())) >
                   std::min(kMaxReserveBytes, kReservedShards * shard.file_bytes());
    } catch (const Error&) {
      has_space_ = false;
    }
  }
  unchecked_bytes_ += bytes;
  return has_space_;
}

std::unique_ptr<RangeFiller::Active> RangeFiller::Take(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto it = active_.find(id);
  std::unique_ptr<Active> active = std::move(it->second);
  active_.erase(it);
  return active;
}

void RangeFiller::OnRangeBytes(uint64_t tag, std::span<const std::byte> bytes) {
  fetched_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  Active* active = nullptr;
  {
    const std::lock_guard lock(mutex_);
    active = active_.at(tag).get();
  }
  std::memcpy(active->fetch.dst + active->got, bytes.data(), bytes.size());
  active->got += bytes.size();
  if (!active->writer) return;
  try {
    active->writer->Write(bytes);
  } catch (const std::exception&) {
    // A disk that is full or fails costs the copy on it, not the computation.
    active->writer.reset();
    has_space_ = false;
  }
}

void RangeFiller::OnRangeDone(uint64_t tag) noexcept {
  const std::unique_ptr<Active> active = Take(tag);
  if (active->writer) {
    try {
      committer_.Add(*active->fetch.shard, active->writer->Finish());
    } catch (const std::exception&) {
      has_space_ = false;
    }
  }
  active->fetch.done(nullptr);
}

void RangeFiller::OnRangeFailed(uint64_t tag, std::exception_ptr error) noexcept {
  Take(tag)->fetch.done(std::move(error));
}

}  // namespace deltafin
