// The journal MODEL/.deltafin/presence/SHARD.map (docs/formats.md). Internal to the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/file.h"
#include "store/presence_map.h"

namespace deltafin {

enum class PresenceRecord : uint8_t {
  kPresent = 1,   // the range is on the disk
  kGone = 2,      // every range that touches this one is not, whatever was recorded before
  kVerified = 3,  // the SHA-256 of the whole file was compared, with everything recorded before
};

struct PresenceContent {
  PresenceMap map{0};
  std::string sha256;  // of the whole file, 64 hexadecimal digits; "" when it is not known
  bool verified = false;
  uint64_t num_records = 0;
  // Bytes that are whole: the next record belongs there. Less than the file where a write was torn.
  uint64_t valid_bytes = 0;
};

// Beside the shard, so that a disk that is moved keeps what it knows.
std::string PresenceFolder(const std::string& shard_path);
std::string PresencePath(const std::string& shard_path);

// Empty when there is no journal. A journal whose head is damaged says that nothing is present. A
// damaged record ends what is believed present; later records that something is gone still count,
// and ranges that the file system knows for holes do not. Throws Error(kIo).
std::optional<PresenceContent> ReadPresence(FileSystem& fs, const std::string& shard_path);

// A whole journal, as after compaction.
std::string SerializePresence(const PresenceMap& map, const std::string& sha256, bool verified);
// The record that is to stand at byte `position`.
std::string SerializePresenceRecord(PresenceRecord kind, const PresentRange& range,
                                    uint64_t position);

}  // namespace deltafin
