// What a machine's GPUs are, for choosing one and for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltafin {

enum class GpuKind : uint8_t { kDiscrete, kIntegrated, kVirtual, kSoftware, kOther };
const char* GpuKindName(GpuKind kind);

struct GpuInfo {
  int number = 0;  // of --device gpu:N
  std::string name;
  std::string driver;  // "NVIDIA 580.159.03"
  std::string vulkan;  // "1.3.277"
  GpuKind kind = GpuKind::kOther;
  uint64_t memory_bytes = 0;      // of its largest heap of its own
  uint64_t free_bytes = 0;        // of these, when it was looked at
  bool shares_ram = false;        // its memory is the machine's
  bool has_doubles = false;       // in shaders, and room for what works with them
  bool keeps_subnormals = false;  // where a shader asks for it
  std::string missing;            // why it cannot be used; "" when it can
};

// Throws Error(kUnsupported) where Vulkan is not installed.
std::vector<GpuInfo> ListGpus();

}  // namespace deltafin
