#include "device/vulkan/self_test.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/format.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

constexpr uint32_t kTriples = 4096;
constexpr uint64_t kCapacityBytes = uint64_t{4} << 20;

const char* ArithmeticName(GpuArithmetic arithmetic) {
  switch (arithmetic) {
    case GpuArithmetic::kFused:
      return "fused multiply-add";
    case GpuArithmetic::kControls:
      return "fused multiply-add, subnormals asked for";
    case GpuArithmetic::kEmulated:
      return "multiply-add in double precision, its own is not fused";
  }
  return "";
}

bool IsSubnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }
bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Floats of all kinds: any sign and fraction, exponents near enough to each other that sums and
// products round, a fifth of them near or below the smallest normal.
std::vector<float> Triples() {
  std::mt19937 random(20240607);
  std::vector<float> values(3 * size_t{kTriples});
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    const uint32_t exponent = i / 3 % 5 == 0 ? bits >> 24 & 63 : 127 - 16 + (bits >> 24 & 31);
    values[i] = std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23);
    // A third value near the negative product: what a second rounding would lose.
    if (i % 3 == 2 && i / 3 % 2 == 0) values[i] = -(values[i - 2] * values[i - 1]);
  }
  return values;
}

}  // namespace

ArithmeticResult TestArithmetic(Gpu& gpu) {
  const std::vector<float> triples = Triples();
  const size_t bytes = triples.size() * sizeof(float);
  GpuBuffer in(gpu, bytes, MemoryUse::kToGpu);
  GpuBuffer out(gpu, bytes, MemoryUse::kFromGpu);
  std::memcpy(in.host(), triples.data(), bytes);
  GpuCommands commands = gpu.Begin();
  commands.Probe(in.address(), out.address(), kTriples);
  gpu.Wait(gpu.Submit(commands));
  std::vector<float> got(triples.size());
  std::memcpy(got.data(), out.host(), bytes);
  ArithmeticResult result;
  for (size_t i = 0; i < triples.size(); i += 3) {
    const float a = triples[i];
    const float b = triples[i + 1];
    const float c = triples[i + 2];
    const float want[3] = {std::fma(a, b, c), a + b, a * b};
    for (size_t j = 0; j < 3; ++j) {
      if (SameBits(want[j], got[i + j])) continue;
      const bool small = IsSubnormal(a) || IsSubnormal(b) || IsSubnormal(c) ||
                         IsSubnormal(want[j]) || IsSubnormal(a * b);
      (small ? result.subnormals : result.normals) = false;
    }
  }
  return result;
}

namespace {

// Of one format, with a last block that is not full. "" when the bits are the host's.
std::string TestProduct(Device& device, Device& host, WeightFormat weights, int64_t n) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 544 + 32;
  std::mt19937 random(17);
  Matrix w{weights, kRows, kCols};
  std::vector<std::byte> data(static_cast<size_t>(kRows * w.row_bytes()));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(random());
  if (weights == WeightFormat::kF32 || weights == WeightFormat::kBf16) {
    // The upper byte: exponents of ordinary weights.
    const size_t step = weights == WeightFormat::kF32 ? 4 : 2;
    for (size_t i = step - 1; i < data.size(); i += step) {
      data[i] = static_cast<std::byte>((random() & 0x80u) | 0x3e);
    }
  }
  std::vector<std::byte> scales(static_cast<size_t>(kRows * kCols / 8));
  for (int64_t row = 0; row < kRows; ++row) {
    const float scale = 0.001f * static_cast<float>(row + 1);
    std::memcpy(scales.data() + row * 4, &scale, 4);
  }
  if (weights == WeightFormat::kMxfp4) {
    for (std::byte& scale : scales) scale = static_cast<std::byte>(118 + random() % 12);
  }
  std::vector<float> x(static_cast<size_t>(n * kCols));
  for (float& value : x) value = static_cast<float>(random() % 65536) * 0x1p-15f - 1.0f;
  w.data = data.data();
  w.scales = scales.data();
  w.id = static_cast<uint64_t>(weights) * 100 + static_cast<uint64_t>(n);
  std::vector<float> want(static_cast<size_t>(n * kRows));
  std::vector<float> got(want.size());
  host.MatMul(w, x.data(), want.data(), kRows, n);
  device.MatMul(w, x.data(), got.data(), kRows, n);
  device.Synchronize();
  const bool same = std::equal(want.begin(), want.end(), got.begin(), SameBits);
  return same ? "" : "products of matrices do not have the CPU's bits";
}

std::string TestProducts(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool) {
  Device& reference = *host;
  std::string lost;
  VulkanDevice device(gpu, std::move(host), pool,
                      {kCapacityBytes, 0, [&lost](const std::string& notice) { lost = notice; }});
  for (const WeightFormat weights :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kMxfp4}) {
    for (const int64_t n : {1, 3, 9}) {
      std::string problem = TestProduct(device, reference, weights, n);
      if (device.is_lost()) return lost;
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

}  // namespace

GpuVerdict TestGpu(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool) {
  GpuVerdict verdict;
  try {
    std::vector<GpuArithmetic> candidates;
    if (gpu.info().keeps_subnormals) candidates.push_back(GpuArithmetic::kControls);
    candidates.push_back(GpuArithmetic::kFused);
    if (gpu.info().has_doubles) candidates.push_back(GpuArithmetic::kEmulated);
    std::optional<GpuArithmetic> best;
    for (const GpuArithmetic candidate : candidates) {
      gpu.SetArithmetic(candidate);
      const ArithmeticResult result = TestArithmetic(gpu);
      if (!result.normals || (best && !result.subnormals)) continue;
      best = candidate;
      verdict.flushes_subnormals = !result.subnormals;
      if (result.subnormals) break;
    }
    if (!best) {
      verdict.problem = "its arithmetic is not IEEE, and it has no double precision to make up";
      return verdict;
    }
    gpu.SetArithmetic(*best);
    verdict.arithmetic = ArithmeticName(*best);
    if (verdict.flushes_subnormals) {
      verdict.arithmetic += "; products that could meet subnormals are the CPU's";
    }
    verdict.problem = TestProducts(gpu, std::move(host), pool);
  } catch (const Error& error) {
    verdict.problem = error.what();
  }
  return verdict;
}

}  // namespace deltafin
