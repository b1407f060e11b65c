#include "device/cpu/cpu_device.h"

#include <algorithm>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "device/cpu/fast_device.h"
#include "device/cpu/plain_device.h"

namespace deltafin {
namespace {

std::string_view FlagName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPlain:
      return "plain";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kNeon:
      return "neon";
  }
  return "";
}

}  // namespace

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

// The compiler's runtime also asks the operating system whether it saves the registers (XGETBV).
std::vector<CpuIsa> AvailableCpuIsas() {
  std::vector<CpuIsa> isas = {CpuIsa::kPlain};
#if defined(DELTAFIN_CPU_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(CpuIsa::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      isas.push_back(CpuIsa::kAvx512);
    }
  }
#elif defined(DELTAFIN_CPU_NEON)
  isas.push_back(CpuIsa::kNeon);
#endif
  return isas;
}

CpuIsa ChooseCpuIsa(std::string_view name) {
  const std::vector<CpuIsa> available = AvailableCpuIsas();
  if (name.empty()) return available.back();
  std::string known;
  for (CpuIsa isa : available) {
    const std::string_view flag = FlagName(isa);
    if (flag == name) return isa;
    known += format("{}{}", known.empty() ? "" : ", ", flag);
  }
  throw Error(ErrorCode::kInvalidArgument,
              format("instruction set: expected one of {}, got \"{}\"", known, name));
}

std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool, CpuIsa isa) {
  const std::vector<CpuIsa> available = AvailableCpuIsas();
  DF_CHECK(std::find(available.begin(), available.end(), isa) != available.end());
  const std::string name(CpuIsaName(isa));
  switch (isa) {
#if defined(DELTAFIN_CPU_X86)
    case CpuIsa::kAvx2:
      return std::make_unique<FastDevice>(pool, kAvx2Kernels, name);
    case CpuIsa::kAvx512:
      return std::make_unique<FastDevice>(pool, kAvx512Kernels, name);
#elif defined(DELTAFIN_CPU_NEON)
    case CpuIsa::kNeon:
      return std::make_unique<FastDevice>(pool, kNeonKernels, name);
#endif
    default:
      return std::make_unique<PlainDevice>(pool);
  }
}

std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool) {
  return MakeCpuDevice(pool, AvailableCpuIsas().back());
}

}  // namespace deltafin
