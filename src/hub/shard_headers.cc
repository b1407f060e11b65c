#include "hub/shard_headers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "hub/memory_fetch.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace deltafin {
namespace {

// The headers of the release have 0.8 MB: one request each.
constexpr uint64_t kFirstBytes = 1 << 20;
constexpr uint64_t kMaxHeaderBytes = (uint64_t{256} << 20) + 8;
constexpr size_t kAtOnce = 16;

// Length of the header with its own length, as the first 8 bytes say; at most the file.
uint64_t HeaderBytes(const std::string& head, uint64_t file_bytes) {
  uint64_t length = 0;
  for (size_t i = std::min<size_t>(8, head.size()); i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(head[i]);
  }
  // What is no header is refused by its parser.
  return std::min({file_bytes, kMaxHeaderBytes, length > kMaxHeaderBytes ? 8 : length + 8});
}

void TakeUnits(FolderShard& shard, const std::string& head) {
  const SafetensorsHeader header =
      SafetensorsHeader::Parse(head, shard.remote.bytes, shard.remote.name);
  shard.units = UnitsOfShard(header, shard.remote.bytes);
}

// Of shards that have no header on the disk.
void FetchHeaders(HubClient& client, const std::vector<FolderShard*>& shards,
                  const std::function<void(FolderShard&, const std::string&)>& on_header,
                  const HubClient::KeepGoing& keep_going) {
  std::vector<MemoryRange> ranges;
  for (const FolderShard* shard : shards) {
    ranges.push_back(
        {shard->remote.name, shard->remote.bytes, {0, std::min(kFirstBytes, shard->remote.bytes)}});
  }
  std::vector<std::string> heads = FetchToMemory(client, ranges, keep_going);
  std::vector<MemoryRange> rest;
  std::vector<size_t> rest_of;
  for (size_t i = 0; i < heads.size(); ++i) {
    const uint64_t bytes = HeaderBytes(heads[i], shards[i]->remote.bytes);
    if (bytes <= heads[i].size()) continue;
    rest.push_back({shards[i]->remote.name,
                    shards[i]->remote.bytes,
                    {heads[i].size(), bytes - heads[i].size()}});
    rest_of.push_back(i);
  }
  if (!rest.empty()) {
    const std::vector<std::string> texts = FetchToMemory(client, rest, keep_going);
    for (size_t i = 0; i < texts.size(); ++i) heads[rest_of[i]] += texts[i];
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    heads[i].resize(
        std::min<uint64_t>(heads[i].size(), HeaderBytes(heads[i], shards[i]->remote.bytes)));
    TakeUnits(*shards[i], heads[i]);
    on_header(*shards[i], heads[i]);
  }
}

}  // namespace

bool ReadLocalHeader(FolderShard& shard) {
  // A file of fewer bytes has no header: its parser says so.
  const uint64_t first_bytes = std::min<uint64_t>(8, shard.remote.bytes);
  if (shard.path.empty() || shard.MissingBytes({0, first_bytes}) > 0) return false;
  const auto file = RealFileSystem().OpenForReading(shard.path);
  std::string head(first_bytes, '\0');
  file->ReadAt(0, std::as_writable_bytes(std::span(head)));
  const uint64_t bytes = HeaderBytes(head, shard.remote.bytes);
  if (shard.MissingBytes({0, bytes}) > 0) return false;
  head.resize(bytes);
  file->ReadAt(0, std::as_writable_bytes(std::span(head)));
  TakeUnits(shard, head);
  return true;
}

void ReadShardHeaders(HubClient& client, std::vector<FolderShard>& shards,
                      const std::function<void(FolderShard&, const std::string&)>& on_header,
                      const HubClient::KeepGoing& keep_going) {
  std::vector<FolderShard*> absent;
  for (FolderShard& shard : shards) {
    if (!ReadLocalHeader(shard)) absent.push_back(&shard);
  }
  for (size_t i = 0; i < absent.size(); i += kAtOnce) {
    const auto begin = absent.begin() + static_cast<ptrdiff_t>(i);
    const auto end = absent.begin() + static_cast<ptrdiff_t>(std::min(i + kAtOnce, absent.size()));
    FetchHeaders(client, {begin, end}, on_header, keep_going);
  }
}

}  // namespace deltafin
