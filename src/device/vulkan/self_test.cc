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
  struct Job {
    VkDeviceAddress triples;
    VkDeviceAddress results;
    uint64_t count;
  };
  commands.RunArithmetic("probe", Job{in.address(), out.address(), kTriples}, kTriples / 64);
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

DeviceBuffer BufferOf(Device& device, const std::vector<float>& values) {
  DeviceBuffer buffer(device, values.size() * sizeof(float));
  device.ToDevice(buffer.address(), values.data(), values.size() * sizeof(float));
  return buffer;
}

// Of one format, with a last block that is not full: whether the bits are the host's.
bool TestProduct(Device& device, Device& host, WeightFormat weights, int64_t n) {
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
  const DeviceBuffer in = BufferOf(device, x);
  const DeviceBuffer out(device, got.size() * sizeof(float));
  device.MatMul(w, in.floats(), out.floats(), kRows, n);
  device.ToHost(got.data(), out.address(), got.size() * sizeof(float));
  return std::equal(want.begin(), want.end(), got.begin(), SameBits);
}

// What the operators are given: values of all kinds, and those where functions change course.
std::vector<float> OperatorValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    const auto kind = static_cast<uint32_t>(random() % 8);
    // Exponents of subnormals, of what is small or large, and around 1.
    const uint32_t exponent = kind == 0   ? 0
                              : kind == 1 ? bits >> 24 & 63
                              : kind == 2 ? 127 + (bits >> 24 & 7)
                                          : 127 - 8 + (bits >> 24 & 11);
    value = std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23);
  }
  return values;
}

// Attention over a few tokens, and a router, from the first values of x.
std::vector<float> AttentionResults(Device& of, const float* x, const Matrix& kv_b,
                                    const float* bias) {
  constexpr MlaShape kShape{2, 16, 8, 16, 32};
  constexpr int64_t kTokens = 70;
  const DeviceBuffer page(of, 256 * 40 * sizeof(float));
  const DeviceBuffer work(of, 1000 * sizeof(float));
  float* const absorbed = work.floats();
  float* const attended = absorbed + 2 * 2 * 40;
  float* const values = attended + 2 * 2 * 32;
  void* const pages[] = {page.address()};
  std::vector<float> got;
  for (const CacheFormat cache : {CacheFormat::kF32, CacheFormat::kBf16}) {
    const LatentCacheView view{pages, 256, cache};
    of.MlaAppend(view, x, 0, kTokens, kShape);
    of.MlaAbsorbQuery(absorbed, kv_b, x, 2, kShape);
    of.MlaAttend(attended, absorbed, view, kTokens - 2, 2, kShape, 0.2f);
    of.MlaExpandValue(values, kv_b, attended, 2, kShape);
    std::vector<float> part(static_cast<size_t>(values - absorbed) + 2 * 2 * 16);
    of.ToHost(part.data(), absorbed, part.size() * sizeof(float));
    got.insert(got.end(), part.begin(), part.end());
  }
  const RouterParams router{200, 8};
  std::vector<int32_t> ids(16);
  std::vector<float> weights(16);
  of.RouterTopK(ids.data(), weights.data(), x, bias, 2, router);
  got.insert(got.end(), ids.begin(), ids.end());
  got.insert(got.end(), weights.begin(), weights.end());
  return got;
}

// Whether the device gives what the host gives for operators on the same values. They are first
// multiplied by one, so that they are where the device computes.
bool TestOperators(Device& device, Device& host) {
  constexpr int64_t kDim = 1000;
  constexpr int64_t kSources = 3;
  constexpr int64_t kCount = (kSources + 2) * kDim;
  const std::vector<float> values = OperatorValues(kCount, 29);
  const std::vector<float> weights = OperatorValues(kDim, 31);
  Matrix ones{WeightFormat::kF32, kCount, 1};
  ones.data = reinterpret_cast<const std::byte*>(values.data());
  ones.id = 1000;
  const std::vector<float> rows = OperatorValues(64 * 32, 37);
  Matrix kv_b{WeightFormat::kF32, 64, 32};
  kv_b.data = reinterpret_cast<const std::byte*>(rows.data());
  kv_b.id = 1001;
  const auto results = [&](Device& of) {
    const DeviceBuffer one = BufferOf(of, {1.0f});
    const DeviceBuffer all(of, 2 * kCount * sizeof(float));
    float* const x = all.floats();
    float* const y = x + kCount;
    std::vector<float> got;
    const auto keep = [&] {
      std::vector<float> part(static_cast<size_t>(kCount));
      of.ToHost(part.data(), y, part.size() * sizeof(float));
      got.insert(got.end(), part.begin(), part.end());
      of.MatMul(ones, one.floats(), x, kCount, 1);
      of.MatMul(ones, one.floats(), y, kCount, 1);
    };
    keep();
    of.RmsNorm(y, x, weights.data(), kSources, kDim, kDim, 1e-5f);
    keep();
    of.GatedRmsNorm(y, x + kDim, weights.data(), 4, kDim / 4, 1e-5f);
    keep();
    of.ResidualMix(y, x, kDim, kSources, x + kSources * kDim, weights.data(), 1, kDim, 1e-5f);
    keep();
    of.SituGlu(y, x, x + 2 * kDim, 2 * kDim, {});
    keep();
    of.SituGlu(y, x + kDim, x, kDim, {4.0f, 0.0f});
    keep();
    of.SigmoidGate(y, x, 2 * kDim);
    keep();
    of.Add(y, x + kDim, 2 * kDim);
    keep();
    of.CombineExperts(y, x, weights.data(), 1, kSources, kDim);
    keep();
    of.L2Normalize(y, 5, kDim, 0.25f);
    keep();
    of.ShortConv(y, x + kDim, weights.data(), x, 4, kDim / 4);
    keep();
    of.KdaGates(y, y + kDim, weights.data(), weights.data(), 2, 5, kDim / 10, -5.0f);
    keep();
    // Of [heads, dim, dim] = [2, 40, 40], three steps.
    of.KdaRecurrence(y + 3200, y, x, x + 240, x + 480, x + 720, x + 960, 3, 2, 40);
    keep();
    const std::vector<float> attention = AttentionResults(of, x, kv_b, weights.data());
    got.insert(got.end(), attention.begin(), attention.end());
    return got;
  };
  const std::vector<float> want = results(host);
  const std::vector<float> got = results(device);
  return std::equal(want.begin(), want.end(), got.begin(), SameBits);
}

std::string TestProducts(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool,
                         GpuVerdict& verdict) {
  Device& reference = *host;
  const auto options = [&](bool has_operators) {
    return VulkanDeviceOptions{kCapacityBytes, 0, nullptr, verdict.flushes_subnormals,
                               has_operators};
  };
  const auto has_right_products = [&](VulkanDevice& device) {
    for (const WeightFormat weights :
         {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kMxfp4}) {
      for (const int64_t n : {1, 3, 9}) {
        if (!TestProduct(device, reference, weights, n)) return false;
      }
    }
    return true;
  };
  // What the host had to compute says nothing of the GPU.
  const auto trouble_of = [](const VulkanDevice& device) -> std::string {
    if (device.is_lost()) return device.why_lost();
    return device.lacked_memory() ? "too little of its memory is free to test it" : "";
  };
  if (gpu.info().has_doubles) {
    VulkanDevice device(gpu, std::move(host), pool, options(true));
    verdict.has_operators = has_right_products(device) && TestOperators(device, reference);
    std::string trouble = trouble_of(device);
    if (!trouble.empty()) return trouble;
    host = device.TakeHost();
    if (verdict.has_operators) return "";
  }
  VulkanDevice device(gpu, std::move(host), pool, options(false));
  const bool right = has_right_products(device);
  std::string trouble = trouble_of(device);
  if (!trouble.empty()) return trouble;
  return right ? "" : "products of matrices do not have the CPU's bits";
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
      verdict.arithmetic += "; it takes subnormals for zero";
    }
    verdict.problem = TestProducts(gpu, std::move(host), pool, verdict);
    verdict.arithmetic += verdict.has_operators ? "; double precision where that is not enough"
                                                : "; what that does not cover is the CPU's";
  } catch (const Error& error) {
    verdict.problem = error.what();
  }
  return verdict;
}

}  // namespace deltafin
