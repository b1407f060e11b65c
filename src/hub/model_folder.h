// The folders of an installation, and what is in them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/hub_client.h"
#include "store/fetch_units.h"
#include "store/install_lock.h"
#include "store/shard_presence.h"

namespace deltafin {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

struct SmallFile {
  const char* name;
  bool required;
};
// config.json comes last: a folder that has it can be opened.
inline constexpr SmallFile kSmallFiles[] = {{kIndexFile, true},
                                            {"tiktoken.model", true},
                                            {"tokenizer_config.json", false},
                                            {"generation_config.json", false},
                                            {"config.json", true}};

struct FolderShard {
  RemoteFile remote;  // name, size, SHA-256
  std::string folder;
  std::string path;
  std::unique_ptr<ShardPresence> presence;  // null: not begun, or not from setup
  bool whole = false;                       // no journal, but a file of the full size
  std::vector<FetchUnit> units;             // once its header was read

  std::vector<ByteRange> Missing(ByteRange range) const;
  uint64_t MissingBytes(ByteRange range) const;
  uint64_t local_bytes() const;
  bool complete() const { return local_bytes() == remote.bytes; }
};

// `dir`, then the others, each once, by whatever names it is given.
std::vector<std::string> ModelFolders(const std::string& dir, const std::vector<std::string>& also);

// The names of the shards that the folder's index lists.
std::vector<std::string> ShardNames(const std::string& dir);

// Looks for the shard in `folders`, as FolderWith chooses; without a file its folder is "". Reads
// its journal.
FolderShard FindShard(const RemoteFile& remote, const std::vector<std::string>& folders);

// The right to fill all folders, which are created. Throws Error(kIo) saying who has it.
std::vector<InstallLock> LockFolders(const std::vector<std::string>& folders);

// Opens the shard for writing, in its folder. What is there of it without a journal does not count.
void BeginShard(FolderShard& shard);

}  // namespace deltafin
