// The headers of shards: which units there are to fetch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/hub_client.h"
#include "hub/model_folder.h"

namespace deltafin {

// Reads the header of every shard, from the disk where it is there, else from the hub, and fills
// `units`. `on_header` gets each that was fetched, with its bytes. Throws Error(kCorrupt) for a
// header that is none.
void ReadShardHeaders(HubClient& client, std::vector<FolderShard>& shards,
                      const std::function<void(FolderShard&, const std::string&)>& on_header,
                      const HubClient::KeepGoing& keep_going);

// The same for one shard that has its header on the disk; false when it has not.
bool ReadLocalHeader(FolderShard& shard);

}  // namespace deltafin
