// Ranges of files into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/hub_client.h"

namespace deltafin {

struct MemoryRange {
  std::string file;
  uint64_t file_bytes = 0;
  ByteRange range;
};

// All at once; returns their bytes. Throws the first error.
std::vector<std::string> FetchToMemory(HubClient& client, const std::vector<MemoryRange>& ranges,
                                       const HubClient::KeepGoing& keep_going);

}  // namespace deltafin
