#include "store/shard_presence.h"

#include <utility>

#include "base/check.h"
#include "io/atomic_file.h"
#include "io/write_file.h"

namespace deltafin {
namespace {

// A journal may be longer than what it says by this part, and so many records.
constexpr uint64_t kSlackFactor = 2;
constexpr uint64_t kSlackRecords = 1024;

uint64_t SizeOf(FileSystem& fs, const std::string& path) {
  return fs.Exists(path) ? fs.OpenForReading(path)->size() : 0;
}

// What the file does not reach any more is not present. True when something was dropped.
bool DropBeyond(PresenceMap& map, uint64_t file_bytes) {
  bool dropped = false;
  for (const PresentRange& range : map.ranges()) {
    if (range.end() <= file_bytes) continue;
    map.Remove({range.offset, range.bytes});
    dropped = true;
  }
  return dropped;
}

}  // namespace

ShardPresence::ShardPresence(std::string path, PresenceContent content)
    : path_(std::move(path)),
      sha256_(std::move(content.sha256)),
      file_bytes_(content.map.file_bytes()),
      map_(std::move(content.map)),
      verified_(content.verified),
      journal_bytes_read_(content.valid_bytes) {}

std::unique_ptr<ShardPresence> ShardPresence::OpenForReading(FileSystem& fs,
                                                             const std::string& shard_path) {
  std::optional<PresenceContent> content = ReadPresence(fs, shard_path);
  if (!content) return nullptr;
  // A head that is damaged says nothing of the size.
  const uint64_t size = SizeOf(fs, shard_path);
  if (content->valid_bytes == 0) content->map = PresenceMap(size);
  DropBeyond(content->map, size);
  return std::unique_ptr<ShardPresence>(new ShardPresence(shard_path, *std::move(content)));
}

std::unique_ptr<ShardPresence> ShardPresence::OpenForWriting(FileSystem& fs,
                                                             const std::string& shard_path,
                                                             uint64_t file_bytes,
                                                             const std::string& sha256) {
  MakeFolders(PresenceFolder(shard_path));
  PresenceContent content;
  content.map = PresenceMap(file_bytes);
  content.sha256 = sha256;
  bool rewrite = true;
  if (std::optional<PresenceContent> old = ReadPresence(fs, shard_path)) {
    const bool same_file = old->valid_bytes > 0 && old->map.file_bytes() == file_bytes &&
                           (sha256.empty() || old->sha256.empty() || old->sha256 == sha256);
    if (same_file) {
      const bool learned_sha = old->sha256.empty() && !sha256.empty();
      content = *std::move(old);
      if (learned_sha) content.sha256 = sha256;
      const bool dropped = DropBeyond(content.map, SizeOf(fs, shard_path));
      content.verified = content.verified && !dropped;
      rewrite = learned_sha || dropped ||
                content.num_records > kSlackFactor * content.map.num_ranges() + kSlackRecords ||
                SizeOf(fs, PresencePath(shard_path)) != content.valid_bytes;
    }
  }
  if (rewrite) {
    const std::string text = SerializePresence(content.map, content.sha256, content.verified);
    WriteFileAtomically(PresencePath(shard_path), std::string_view(text));
    content.valid_bytes = text.size();
  }
  const uint64_t journal_bytes = content.valid_bytes;
  std::unique_ptr<ShardPresence> shard(new ShardPresence(shard_path, std::move(content)));
  shard->file_ = fs.OpenSparse(shard_path, file_bytes);
  shard->journal_ = std::make_unique<JournalFile>(PresencePath(shard_path), journal_bytes);
  return shard;
}

bool ShardPresence::Contains(ByteRange range) const {
  const std::lock_guard lock(mutex_);
  return map_.Contains(range);
}

std::vector<ByteRange> ShardPresence::Missing(ByteRange range) const {
  const std::lock_guard lock(mutex_);
  return map_.Missing(range);
}

std::vector<PresentRange> ShardPresence::Ranges() const {
  const std::lock_guard lock(mutex_);
  return map_.ranges();
}

uint64_t ShardPresence::present_bytes() const {
  const std::lock_guard lock(mutex_);
  return map_.present_bytes();
}

bool ShardPresence::complete() const {
  const std::lock_guard lock(mutex_);
  return map_.complete();
}

bool ShardPresence::verified() const {
  const std::lock_guard lock(mutex_);
  return verified_;
}

void ShardPresence::Refresh(FileSystem& fs) {
  DF_CHECK(!can_write());
  const std::lock_guard journal_lock(journal_mutex_);
  if (SizeOf(fs, PresencePath(path_)) == journal_bytes_read_) return;
  std::optional<PresenceContent> content = ReadPresence(fs, path_);
  if (!content || content->map.file_bytes() != file_bytes_) return;
  const std::lock_guard lock(mutex_);
  map_ = std::move(content->map);
  verified_ = content->verified;
  journal_bytes_read_ = content->valid_bytes;
}

bool ShardPresence::MarkReadable(const PresentRange& range) {
  const std::lock_guard lock(mutex_);
  return map_.Add(range);
}

void ShardPresence::Append(PresenceRecord kind, std::span<const PresentRange> ranges) {
  std::string text;
  for (const PresentRange& range : ranges) {
    text += SerializePresenceRecord(kind, range, journal_->size() + text.size());
  }
  journal_->Append(text);
}

void ShardPresence::Record(std::span<const PresentRange> ranges) {
  DF_CHECK(can_write());
  const std::lock_guard journal_lock(journal_mutex_);
  try {
    // In this order: a record of bytes that a power cut loses would be believed.
    file_->Sync();
    Append(PresenceRecord::kPresent, ranges);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    for (const PresentRange& range : ranges) map_.Remove({range.offset, range.bytes});
    throw;
  }
}

std::vector<PresentRange> ShardPresence::Forget(std::span<const ByteRange> ranges) {
  DF_CHECK(can_write());
  const std::lock_guard journal_lock(journal_mutex_);
  std::vector<PresentRange> records;
  for (const ByteRange& range : ranges) records.push_back({range.offset, range.bytes, 0});
  Append(PresenceRecord::kGone, records);
  const std::lock_guard lock(mutex_);
  verified_ = false;
  std::vector<PresentRange> gone;
  for (const ByteRange& range : ranges) {
    for (const PresentRange& removed : map_.Remove(range)) gone.push_back(removed);
  }
  return gone;
}

void ShardPresence::RecordVerified() {
  DF_CHECK(can_write());
  const std::lock_guard journal_lock(journal_mutex_);
  const PresentRange whole{0, file_bytes_, 0};
  Append(PresenceRecord::kVerified, {&whole, 1});
  const std::lock_guard lock(mutex_);
  verified_ = true;
}

}  // namespace deltafin
