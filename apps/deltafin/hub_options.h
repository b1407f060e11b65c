// Where models come from: environment and flags that the commands with a network share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command_line.h"
#include "deltafin/hub.h"

namespace deltafin {

// HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the token file mean what they mean to the tools of the
// hub; K3_HF_HOST and K3_HF_PATH name a mirror.
HubOptions HubOptionsFromEnvironment();

// Values of the flags; strings are checked by ToHubOptions.
struct HubFlags {
  std::string dir;
  std::vector<std::string> also;
  std::string revision;
  std::string limit_rate;
  int jobs = 0;
};

// --dir and --also, for every command that works on an installation.
void AddFolderFlags(CLI::App& command, HubFlags* flags);
// --revision, --jobs and --limit-rate besides.
void AddHubFlags(CLI::App& command, HubFlags* flags);
HubOptions ToHubOptions(const HubFlags& flags);

// --dir, else DELTAFIN_ROOT/Kimi-K3, else ~/Kimi-K3. Throws Error when there is no home.
std::string InstallDir(const HubFlags& flags);

// "500G", "1.5T", "2GiB", or plain bytes; as disks and networks are sold, G is 10^9. Throws
// Error(kInvalidArgument) naming the flag.
uint64_t ParseDiskBytes(const std::string& flag, const std::string& text);

}  // namespace deltafin
