// MODEL/.deltafin/source.json: where a model folder came from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/hub_client.h"

namespace deltafin {

struct SourceInfo {
  std::string endpoint;
  std::string repo;
  std::string revision;  // the commit, where the hub says it, else what was asked for
  std::vector<RemoteFile> files;

  // Null when it is not listed.
  const RemoteFile* Find(const std::string& name) const;
};

// Empty when there is none. Throws Error(kCorrupt).
std::optional<SourceInfo> ReadSourceInfo(const std::string& dir);
// Throws Error(kIo) or Error(kNoSpace).
void WriteSourceInfo(const std::string& dir, const SourceInfo& info);

}  // namespace deltafin
