#include "hub/shard_check.h"

#include <algorithm>

#include "base/format.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/sparse_file.h"

namespace deltafin {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

void Report(const CheckProgress& progress, uint64_t bytes) {
  if (progress && !progress(bytes)) throw Error(ErrorCode::kCancelled, "stopped on request");
}

// Calls use(piece) for the pieces of a range in order.
template <class Use>
void ForEachPiece(const ReadableFile& file, ByteRange range, const CheckProgress& progress,
                  Use&& use) {
  std::vector<std::byte> buffer(std::min(range.bytes, kPieceBytes));
  for (uint64_t done = 0; done < range.bytes;) {
    const auto piece = std::span(buffer).first(std::min(kPieceBytes, range.bytes - done));
    file.ReadAt(range.offset + done, piece);
    use(std::span<const std::byte>(piece));
    done += piece.size();
    Report(progress, piece.size());
  }
}

}  // namespace

ShardHashes HashShard(const std::string& path, const std::vector<FetchUnit>& units,
                      const CheckProgress& progress) {
  const auto file = RealFileSystem().OpenForReading(path);
  ShardHashes hashes;
  Sha256 sha;
  Xxh3Stream xxh3;
  for (const FetchUnit& unit : units) {
    xxh3.Restart();
    ForEachPiece(*file, unit.range, progress, [&](std::span<const std::byte> piece) {
      sha.Update(piece);
      xxh3.Update(piece);
    });
    hashes.ranges.push_back({unit.range.offset, unit.range.bytes, xxh3.Digest()});
  }
  hashes.sha256 = sha.HexDigest();
  return hashes;
}

std::vector<PresentRange> DamagedRanges(const FolderShard& shard, const CheckProgress& progress) {
  const auto file = RealFileSystem().OpenForReading(shard.path);
  std::vector<PresentRange> damaged;
  Xxh3Stream xxh3;
  for (const PresentRange& range : shard.presence->Ranges()) {
    xxh3.Restart();
    try {
      ForEachPiece(*file, {range.offset, range.bytes}, progress,
                   [&](std::span<const std::byte> piece) { xxh3.Update(piece); });
      if (xxh3.Digest() == range.checksum) continue;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
    }
    damaged.push_back(range);
  }
  return damaged;
}

std::vector<PresentRange> HollowRanges(const FolderShard& shard) {
  const auto file = RealFileSystem().OpenForReading(shard.path);
  std::vector<PresentRange> hollow;
  for (const PresentRange& range : shard.presence->Ranges()) {
    if (!IsFilled(*file, range.offset, range.bytes)) hollow.push_back(range);
  }
  return hollow;
}

bool AdoptShard(FolderShard& shard, const CheckProgress& progress) {
  const ShardHashes hashes = HashShard(shard.path, shard.units, progress);
  const std::string& expected = shard.remote.sha256;
  if (!expected.empty() && hashes.sha256 != expected) return false;
  BeginShard(shard);
  for (const PresentRange& range : hashes.ranges) (void)shard.presence->MarkReadable(range);
  shard.presence->Record(hashes.ranges);
  if (!expected.empty()) shard.presence->RecordVerified();
  return true;
}

bool VerifyShard(FolderShard& shard, const CheckProgress& progress) {
  const std::string& expected = shard.remote.sha256;
  if (expected.empty() || shard.presence->verified()) return true;
  const auto file = RealFileSystem().OpenForReading(shard.path);
  Sha256 sha;
  ForEachPiece(*file, {0, file->size()}, progress,
               [&](std::span<const std::byte> piece) { sha.Update(piece); });
  if (sha.HexDigest() == expected) {
    shard.presence->RecordVerified();
    return true;
  }
  shard.presence->Forget({0, shard.remote.bytes});
  return false;
}

}  // namespace deltafin
