#include "store/presence_file.h"

#include <cstring>
#include <filesystem>
#include <span>

#include "io/hash.h"
#include "io/sparse_file.h"

namespace deltafin {
namespace {

constexpr char kPresenceMagic[] = "DFPRES01";
constexpr uint64_t kMaxJournalBytes = uint64_t{1} << 30;
constexpr int kKindShift = 56;

// Numbers are little-endian in the file.
void Put(std::string& text, uint64_t value) {
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t Get(std::string_view text, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(text[at + i])) << (8 * i);
  }
  return value;
}

uint64_t HashOf(std::string_view text) { return Xxh3(std::as_bytes(std::span(text))); }

// 8 magic, 8 size, 32 SHA-256, 8 zeros, 8 hash.
constexpr size_t kHeadBytes = 64;
// 8 offset, 8 kind and bytes, 8 checksum, 8 hash of these and the position.
constexpr size_t kRecordBytes = 32;

uint64_t RecordHash(std::string_view fields, uint64_t position) {
  std::string text(fields);
  Put(text, position);
  return HashOf(text);
}

std::string ToHex(std::string_view bytes) {
  if (bytes.find_first_not_of('\0') == std::string_view::npos) return "";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string FromHex(const std::string& hex) {
  std::string bytes(32, '\0');
  if (hex.size() != 64) return bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
  for (size_t i = 0; i < 32; ++i) {
    bytes[i] = static_cast<char>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  }
  return bytes;
}

std::string SerializeHead(uint64_t file_bytes, const std::string& sha256) {
  std::string head(kPresenceMagic, 8);
  Put(head, file_bytes);
  head += FromHex(sha256);
  Put(head, 0);
  Put(head, HashOf(head));
  return head;
}

struct Record {
  PresenceRecord kind = PresenceRecord::kPresent;
  PresentRange range;
};

std::optional<Record> ParseRecord(std::string_view text, uint64_t position) {
  const std::string_view record = text.substr(position, kRecordBytes);
  if (Get(record, 24) != RecordHash(record.substr(0, 24), position)) return std::nullopt;
  const uint64_t kind_and_bytes = Get(record, 8);
  Record parsed;
  parsed.kind = static_cast<PresenceRecord>(kind_and_bytes >> kKindShift);
  parsed.range = {Get(record, 0), kind_and_bytes & ((uint64_t{1} << kKindShift) - 1),
                  Get(record, 16)};
  return parsed;
}

// Ranges that were never written are not present, whatever a damaged journal says.
void DropHoles(FileSystem& fs, const std::string& shard_path, PresenceMap& map) {
  if (!fs.Exists(shard_path)) return;
  const auto file = fs.OpenForReading(shard_path);
  for (const PresentRange& range : map.ranges()) {
    if (range.end() <= file->size() && IsFilled(*file, range.offset, range.bytes)) continue;
    map.Remove({range.offset, range.bytes});
  }
}

}  // namespace

std::string PresenceFolder(const std::string& shard_path) {
  return (std::filesystem::path(shard_path).parent_path() / ".deltafin/presence").string();
}

std::string PresencePath(const std::string& shard_path) {
  return JoinPath(PresenceFolder(shard_path),
                  std::filesystem::path(shard_path).filename().string() + ".map");
}

std::optional<PresenceContent> ReadPresence(FileSystem& fs, const std::string& shard_path) {
  const std::string path = PresencePath(shard_path);
  if (!fs.Exists(path)) return std::nullopt;
  const std::string text = ReadWholeFile(fs, path, kMaxJournalBytes);
  PresenceContent content;
  if (text.size() < kHeadBytes || text.compare(0, 8, kPresenceMagic) != 0 ||
      Get(text, kHeadBytes - 8) != HashOf(std::string_view(text).substr(0, kHeadBytes - 8))) {
    return content;
  }
  content.map = PresenceMap(Get(text, 8));
  content.sha256 = ToHex(std::string_view(text).substr(16, 32));
  content.valid_bytes = kHeadBytes;
  bool damaged = false;
  bool more_after_damage = false;
  for (uint64_t at = kHeadBytes; at + kRecordBytes <= text.size(); at += kRecordBytes) {
    const std::optional<Record> record = ParseRecord(text, at);
    if (!record) {
      damaged = true;
      continue;
    }
    more_after_damage |= damaged;
    const PresentRange& range = record->range;
    if (record->kind == PresenceRecord::kGone) {
      content.map.Remove({range.offset, range.bytes});
      content.verified = false;
    } else if (!damaged && record->kind == PresenceRecord::kPresent) {
      // A range that does not fit adds nothing.
      (void)content.map.Add(range);
    } else if (!damaged && record->kind == PresenceRecord::kVerified) {
      content.verified = true;
    }
    if (damaged) continue;
    ++content.num_records;
    content.valid_bytes = at + kRecordBytes;
  }
  content.verified = content.verified && content.map.complete();
  // A torn end is what a crash leaves; a damaged middle may have said that something is gone.
  if (more_after_damage) DropHoles(fs, shard_path, content.map);
  return content;
}

std::string SerializePresence(const PresenceMap& map, const std::string& sha256, bool verified) {
  std::string text = SerializeHead(map.file_bytes(), sha256);
  for (const PresentRange& range : map.ranges()) {
    text += SerializePresenceRecord(PresenceRecord::kPresent, range, text.size());
  }
  if (verified) {
    text +=
        SerializePresenceRecord(PresenceRecord::kVerified, {0, map.file_bytes(), 0}, text.size());
  }
  return text;
}

std::string SerializePresenceRecord(PresenceRecord kind, const PresentRange& range,
                                    uint64_t position) {
  std::string record;
  Put(record, range.offset);
  Put(record, static_cast<uint64_t>(kind) << kKindShift | range.bytes);
  Put(record, range.checksum);
  Put(record, RecordHash(record, position));
  return record;
}

}  // namespace deltafin
