#include "store/model_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/sparse_file.h"
#include "store/checkpoint.h"
#include "store/range_filler.h"
#include "store/streamed_queue.h"

namespace deltafin {
namespace {

std::string Gb(uint64_t bytes) { return format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

}  // namespace

ModelFiles::ModelFiles(FileSystem& base, std::shared_ptr<RangeSource> source,
                       const std::string& folder_flags)
    : base_(base),
      source_(std::move(source)),
      folder_flags_(folder_flags),
      filler_(std::make_unique<RangeFiller>(source_, folder_flags)) {}

ModelFiles::~ModelFiles() = default;

ModelFiles::Folder& ModelFiles::FolderOf(const std::string& shard_path) {
  const std::string dir = std::filesystem::path(shard_path).parent_path().string();
  auto it = folders_.find(dir);
  if (it == folders_.end()) {
    std::optional<InstallLock> use = InstallLock::Use(dir.empty() ? "." : dir);
    it = folders_.emplace(dir, Folder{std::move(use), std::nullopt}).first;
  }
  return it->second;
}

std::unique_ptr<ReadableFile> ModelFiles::OpenForReading(const std::string& path) {
  std::unique_ptr<ReadableFile> file = base_.OpenForReading(path);
  if (!path.ends_with(".safetensors")) return file;
  const std::lock_guard lock(mutex_);
  Folder& folder = FolderOf(path);
  auto it = shards_.find(path);
  if (it == shards_.end()) {
    std::unique_ptr<ShardPresence> shard = ShardPresence::OpenForReading(base_, path);
    if (shard == nullptr || shard->complete()) return file;
    if (shard->file_bytes() != file->size()) {
      throw Error(ErrorCode::kCorrupt,
                  format("{}: has {} bytes, expected {}; run: deltafin setup {}", path,
                         file->size(), shard->file_bytes(), folder_flags_));
    }
    if (source_ != nullptr && !folder.fill) {
      try {
        folder.fill = InstallLock::TryFill(std::filesystem::path(path).parent_path().string());
      } catch (const Error&) {
        // A folder that cannot be written: what is fetched is used and not kept.
      }
    }
    if (folder.fill) {
      shard = ShardPresence::OpenForWriting(base_, path, shard->file_bytes(), shard->sha256());
    }
    it = shards_.emplace(path, std::move(shard)).first;
  }
  return std::make_unique<StreamedFile>(base_, std::move(file), it->second, *filler_);
}

bool ModelFiles::streaming() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const auto& shard) { return !shard.second->complete(); });
}

uint64_t ModelFiles::fetched_bytes() const { return filler_->fetched_bytes(); }

void ModelFiles::EndFetches() { filler_->Close(); }

std::unique_ptr<ReadQueue> ModelFiles::Wrap(std::unique_ptr<ReadQueue> queue) {
  return streaming() ? MakeStreamedReadQueue(std::move(queue), *filler_) : std::move(queue);
}

LocalShare ModelFiles::ShareOf(const Checkpoint& checkpoint) const {
  LocalShare share;
  std::vector<uint64_t> experts_missing(checkpoint.num_shards());
  const std::lock_guard lock(mutex_);
  std::vector<const ShardPresence*> presence(checkpoint.num_shards());
  for (uint32_t shard = 0; shard < checkpoint.num_shards(); ++shard) {
    const auto it = shards_.find(checkpoint.file(shard).path());
    presence[shard] = it == shards_.end() ? nullptr : it->second.get();
  }
  std::vector<uint64_t> expert_bytes(checkpoint.num_shards());
  for (int64_t layer = 0; layer < checkpoint.config().num_layers; ++layer) {
    if (!checkpoint.config().IsMoe(layer)) continue;
    for (int64_t expert = 0; expert < checkpoint.config().num_experts; ++expert) {
      const Extent span = checkpoint.ExpertSpan(layer, expert);
      share.expert_bytes += span.bytes;
      expert_bytes[span.shard] += span.bytes;
      const ShardPresence* shard = presence[span.shard];
      if (shard == nullptr || shard->Contains({span.offset, span.bytes})) {
        share.local_expert_bytes += span.bytes;
      } else {
        for (const ByteRange& gap : shard->Missing({span.offset, span.bytes})) {
          experts_missing[span.shard] += gap.bytes;
        }
      }
    }
  }
  for (uint32_t i = 0; i < checkpoint.num_shards(); ++i) {
    if (presence[i] == nullptr) continue;
    const uint64_t rest = presence[i]->file_bytes() - expert_bytes[i];
    // More may have come since the experts were looked at.
    const uint64_t absent = presence[i]->file_bytes() - presence[i]->present_bytes();
    const uint64_t missing = absent - std::min(absent, experts_missing[i]);
    share.spine_bytes += rest;
    share.local_spine_bytes += rest - std::min(rest, missing);
  }
  return share;
}

std::vector<std::string> ModelFiles::Reminders(const Checkpoint& checkpoint) const {
  std::vector<std::string> lines{StreamingLine(checkpoint), HolesLine(checkpoint)};
  std::erase(lines, "");
  return lines;
}

std::string ModelFiles::StreamingLine(const Checkpoint& checkpoint) const {
  if (!streaming()) return "";
  const LocalShare share = ShareOf(checkpoint);
  if (share.missing_bytes() == 0) return "";
  bool keeps = true;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [path, shard] : shards_) keeps = keeps && shard->can_write();
  }
  const double percent = share.expert_bytes == 0
                             ? 100
                             : 100 * static_cast<double>(share.local_expert_bytes) /
                                   static_cast<double>(share.expert_bytes);
  std::string line = format("streaming: {:.1f} % of the experts are on this disk ({} of {})",
                            percent, Gb(share.local_expert_bytes), Gb(share.expert_bytes));
  if (share.local_spine_bytes < share.spine_bytes) {
    line +=
        format(", and {} of the spine are not", Gb(share.spine_bytes - share.local_spine_bytes));
  }
  line += source_ == nullptr ? "; the rest is not fetched now"
                             : format("; the rest comes from {} when it is needed{}",
                                      source_->Describe(), keeps ? "" : " and is not kept");
  line += format(". To fetch all of it ({}): deltafin setup --full {}", Gb(share.missing_bytes()),
                 folder_flags_);
  return line;
}

// A shard without a map counts as complete: it came from elsewhere, or the map was deleted.
std::string ModelFiles::HolesLine(const Checkpoint& checkpoint) const {
  int num_shards = 0;
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < checkpoint.num_shards(); ++i) {
    if (!checkpoint.HoldsText(i)) continue;
    const ReadableFile& file = checkpoint.file(i);
    num_shards += !shards_.contains(file.path()) && !IsFilled(file, 0, file.size());
  }
  if (num_shards == 0) return "";
  return format(
      "holes: {} of {} shards have parts that were never written, and nothing says that they are "
      "incomplete: those parts are read as zeros. If the model is to be whole: deltafin setup "
      "--full {}",
      num_shards, checkpoint.num_shards(), folder_flags_);
}

}  // namespace deltafin
