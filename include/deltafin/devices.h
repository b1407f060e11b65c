// What this machine can compute with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltafin {

struct ComputeDevice {
  std::string flag;  // for --device: "cpu", "gpu:0"
  std::string name;
  std::string features;       // instruction set and threads; driver, version, kind
  uint64_t memory_bytes = 0;  // a GPU's
  uint64_t free_bytes = 0;    // of these, now
  bool usable = false;
  // Of the self-test: "exact: fused multiply-add", or why it cannot be used.
  std::string verdict;
};

// The CPU first, then the GPUs that Vulkan lists. `note` says why there are none; "" otherwise.
std::vector<ComputeDevice> ListDevices(std::string* note);

}  // namespace deltafin
