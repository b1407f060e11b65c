// What this machine is called, for people.
#pragma once

#include <string>

namespace deltafin {

// "" where the system does not say, as Linux on Arm.
std::string CpuName();
std::string KernelRelease();

}  // namespace deltafin
