// Comparing what is on the disk with what it should be.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/model_folder.h"

namespace deltafin {

// Called with the bytes that were read since the last call; false stops with Error(kCancelled).
using CheckProgress = std::function<bool(uint64_t bytes)>;

struct ShardHashes {
  std::string sha256;
  std::vector<PresentRange> ranges;  // of each unit, with its checksum
};

// Reads a whole shard once. `units` in order, without gaps.
ShardHashes HashShard(const std::string& path, const std::vector<FetchUnit>& units,
                      const CheckProgress& progress);

// The ranges of a shard whose bytes differ from their checksum, or cannot be read.
std::vector<PresentRange> DamagedRanges(const FolderShard& shard, const CheckProgress& progress);

// Likewise, of those that the file system knows for holes: reads nothing.
std::vector<PresentRange> HollowRanges(const FolderShard& shard);

// Makes the journal of a shard that is whole but was not fetched from here, after its SHA-256 was
// compared, where that is known. False, and nothing changes, when it is not what it should be.
bool AdoptShard(FolderShard& shard, const CheckProgress& progress);

// Compares the SHA-256 of a complete shard and records that it is right; where it is not, nothing
// of the shard counts as present any more. True when right, or when the hub says none.
bool VerifyShard(FolderShard& shard, const CheckProgress& progress);

}  // namespace deltafin
