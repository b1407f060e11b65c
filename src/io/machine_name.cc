#include "io/machine_name.h"

#include <sys/utsname.h>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <fstream>
#endif

namespace deltafin {

std::string CpuName() {
#if defined(__APPLE__)
  char name[256] = {};
  size_t bytes = sizeof(name) - 1;
  return ::sysctlbyname("machdep.cpu.brand_string", name, &bytes, nullptr, 0) == 0 ? name : "";
#else
  // "model name : X"
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t value = line.find(": ");
    if (value != std::string::npos) return line.substr(value + 2);
  }
  return "";
#endif
}

std::string KernelRelease() {
  utsname name = {};
  return ::uname(&name) == 0 ? name.release : "";
}

}  // namespace deltafin
