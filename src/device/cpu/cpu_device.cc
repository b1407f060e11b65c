#include "device/cpu/cpu_device.h"

#include <algorithm>

#include "base/check.h"
#include "device/cpu/plain_device.h"

namespace deltafin {

std::string_view CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPlain:
      return "plain";
    case CpuIsa::kAvx2:
      return "AVX2";
    case CpuIsa::kAvx512:
      return "AVX-512";
    case CpuIsa::kNeon:
      return "NEON";
  }
  return "";
}

std::vector<CpuIsa> AvailableCpuIsas() { return {CpuIsa::kPlain}; }

std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool, CpuIsa isa) {
  const std::vector<CpuIsa> available = AvailableCpuIsas();
  DF_CHECK(std::find(available.begin(), available.end(), isa) != available.end());
  return std::make_unique<PlainDevice>(pool);
}

std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool) {
  return MakeCpuDevice(pool, AvailableCpuIsas().back());
}

}  // namespace deltafin
