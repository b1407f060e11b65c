// gpu_products [NUMBER]: what a GPU reaches with the products of K3's widths, next to its copy
// bandwidth. The weights of each case lie in 1 GiB, so that they come from memory.
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/format.h"
#include "device/cpu/cpu_device.h"
#include "device/vulkan/gpu.h"
#include "device/vulkan/lane_layout.h"
#include "device/vulkan/self_test.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 30;

double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of some runs, on a GPU that was kept busy until its clock is up.
double Best(int runs, const std::function<void()>& run) {
  constexpr double kBusySeconds = 0.3;
  double busy = 0;
  while (busy < kBusySeconds) busy += Seconds(run);
  double best = 1e9;
  for (int i = 0; i < runs; ++i) best = std::min(best, Seconds(run));
  return best;
}

class Bench {
 public:
  explicit Bench(Gpu& gpu)
      : gpu_(gpu),
        weights_(gpu, kBytes, MemoryUse::kScratch),
        other_(gpu, kBytes, MemoryUse::kScratch),
        activations_(gpu, uint64_t{128} << 20, MemoryUse::kScratch) {
    constexpr uint64_t kPattern = uint64_t{32} << 20;
    GpuBuffer pattern(gpu, kPattern, MemoryUse::kToGpu);
    std::mt19937 random(1);
    for (uint64_t i = 0; i < kPattern; i += 4) {
      const auto bits = (static_cast<uint32_t>(random()) & 0x8fff8fffu) | 0x30003000u;
      std::memcpy(pattern.host() + i, &bits, 4);
    }
    GpuCommands commands = gpu.Begin();
    for (uint64_t i = 0; i < kBytes; i += kPattern)
      commands.Copy(weights_, i, pattern, 0, kPattern);
    commands.Copy(activations_, 0, pattern, 0, kPattern);
    gpu.Wait(gpu.Submit(commands));
  }

  void Copies() {
    constexpr int kTimes = 8;
    const double seconds = Best(5, [&] {
      GpuCommands commands = gpu_.Begin();
      for (int i = 0; i < kTimes; ++i) {
        commands.Copy(other_, 0, weights_, 0, kBytes);
        commands.Barrier();
      }
      gpu_.Wait(gpu_.Submit(commands));
    });
    copy_bandwidth_ = 2.0 * kBytes * kTimes / seconds;
    std::printf("copy: %.0f GB/s read and written; staging is %s\n", copy_bandwidth_ / 1e9,
                GpuBuffer(gpu_, 1, MemoryUse::kToGpu).is_local() ? "local" : "the host's");
  }

  void Products(const char* name, WeightFormat format, int64_t rows, int64_t cols, int64_t n) {
    const auto bytes = static_cast<uint64_t>(rows * LaidOutRowBytes(format, cols));
    const uint64_t count = std::max<uint64_t>(1, kBytes / bytes);
    const uint64_t most = n >= 64 ? 4 : count;
    const double seconds = Best(5, [&] {
      GpuCommands commands = gpu_.Begin();
      for (uint64_t i = 0; i < std::min(count, most); ++i) {
        const ProductJob job = JobOf(rows, cols, n, weights_.address() + i * bytes);
        commands.Product(format, job);
      }
      gpu_.Wait(gpu_.Submit(commands));
    });
    const double each = seconds / static_cast<double>(std::min(count, most));
    Print(name, rows, cols, n, each, static_cast<double>(bytes));
  }

  // The first or the second half of what 16 experts compute, in one go.
  void Experts(int64_t rows, int64_t cols, uint32_t count, int64_t n) {
    const auto bytes = static_cast<uint64_t>(rows * LaidOutRowBytes(WeightFormat::kMxfp4, cols));
    const uint64_t turns = kBytes / (bytes * count);
    const uint64_t table_bytes = turns * count * sizeof(ProductJob);
    const GpuBuffer staging(gpu_, table_bytes, MemoryUse::kToGpu);
    const GpuBuffer table(gpu_, table_bytes, MemoryUse::kScratch);
    auto* const jobs = reinterpret_cast<ProductJob*>(staging.host());
    for (uint64_t i = 0; i < turns * count; ++i) {
      jobs[i] = JobOf(rows, cols, n, weights_.address() + i * bytes);
      jobs[i].y += i % count * static_cast<uint64_t>(rows * n) * sizeof(float);
    }
    GpuCommands copy = gpu_.Begin();
    copy.Copy(table, 0, staging, 0, table_bytes);
    gpu_.Wait(gpu_.Submit(copy));
    const double seconds = Best(5, [&] {
      GpuCommands commands = gpu_.Begin();
      for (uint64_t i = 0; i < turns; ++i) {
        commands.Products(WeightFormat::kMxfp4, table.address() + i * count * sizeof(ProductJob),
                          count, jobs[0], jobs[0].n, jobs[0].n);
        commands.Barrier();
      }
      gpu_.Wait(gpu_.Submit(commands));
    });
    const double each = seconds / static_cast<double>(turns);
    Print(format("{} x mxfp4", count).c_str(), rows, cols, n, each,
          static_cast<double>(bytes * count), count);
  }

 private:
  ProductJob JobOf(int64_t rows, int64_t cols, int64_t n, VkDeviceAddress weights) const {
    ProductJob job;
    job.weights = weights;
    job.scales = activations_.address();
    job.x = activations_.address();
    job.plain_x = activations_.address();
    job.quanta = activations_.address();
    job.y = other_.address();
    job.rows = static_cast<uint32_t>(rows);
    job.cols = static_cast<uint32_t>(cols);
    job.n = static_cast<uint32_t>(n);
    job.y_stride = job.rows;
    job.least = INT_MIN;
    return job;
  }
  void Print(const char* name, int64_t rows, int64_t cols, int64_t n, double seconds, double bytes,
             int64_t count = 1) const {
    const double bandwidth = bytes / seconds;
    const double flops = 2.0 * static_cast<double>(count * rows * cols * n) / seconds;
    std::printf(
        "%-10s %6ld x %5ld, %3ld positions: %8.1f us, %5.0f GB/s (%.2f of copy), %6.2f TFLOP/s\n",
        name, static_cast<long>(rows), static_cast<long>(cols), static_cast<long>(n), seconds * 1e6,
        bandwidth / 1e9, bandwidth / copy_bandwidth_, flops / 1e12);
  }

  Gpu& gpu_;
  GpuBuffer weights_;
  GpuBuffer other_;
  GpuBuffer activations_;
  double copy_bandwidth_ = 1;
};

// One product, from the host's activations to the host's results.
void RoundTrip(Gpu& gpu) {
  ThreadPool pool(UsableProcessors());
  VulkanDevice device(gpu, MakeCpuDevice(pool), pool, {kBytes, 0, nullptr, true, true});
  std::vector<std::byte> data(size_t{12288} * 7168 * 2, std::byte{0x3c});
  const DeviceBuffer x(device, 7168 * sizeof(float));
  const DeviceBuffer y(device, 12288 * sizeof(float));
  std::vector<float> host(12288);
  for (const int64_t rows : {96, 12288}) {
    Matrix w{WeightFormat::kBf16, rows, 7168, data.data()};
    w.id = static_cast<uint64_t>(rows);
    const double seconds = Best(200, [&] {
      device.ToDevice(x.address(), host.data(), x.size_bytes());
      device.MatMul(w, x.floats(), y.floats(), rows, 1);
      device.ToHost(host.data(), y.address(), static_cast<size_t>(rows) * sizeof(float));
    });
    std::printf("round trip of a bf16 product %ld x 7168: %.1f us\n", static_cast<long>(rows),
                seconds * 1e6);
  }
}

void Run(size_t number) {
  const auto instance = VulkanInstance::Create();
  Gpu gpu(instance, number);
  ThreadPool pool(1);
  double test_seconds = 0;
  GpuVerdict verdict;
  test_seconds = Seconds([&] { verdict = TestGpu(gpu, MakeCpuDevice(pool), pool); });
  std::printf("%s, %s: %s%s, subnormals %d, self-test %.2f s\n", gpu.info().name.c_str(),
              gpu.info().driver.c_str(), verdict.arithmetic.c_str(), verdict.problem.c_str(),
              !verdict.flushes_subnormals, test_seconds);
  for (const GpuArithmetic arithmetic :
       {GpuArithmetic::kControls, GpuArithmetic::kFused, GpuArithmetic::kEmulated}) {
    const GpuArithmetic chosen = gpu.arithmetic();
    if (arithmetic == GpuArithmetic::kControls && !gpu.info().keeps_subnormals) continue;
    gpu.SetArithmetic(arithmetic);
    const ArithmeticResult result = TestArithmetic(gpu);
    gpu.SetArithmetic(chosen);
    std::printf("arithmetic %d: normals %d, subnormals %d\n", static_cast<int>(arithmetic),
                result.normals, result.subnormals);
  }
  Bench bench(gpu);
  bench.Copies();
  const std::pair<const char*, WeightFormat> formats[] = {
      {"bf16", WeightFormat::kBf16}, {"int8", WeightFormat::kInt8}, {"f32", WeightFormat::kF32}};
  for (const int64_t n : {1, 4, 8, 512}) {
    for (const auto& [name, format] : formats) bench.Products(name, format, 12288, 7168, n);
    bench.Products("bf16", WeightFormat::kBf16, 7168, 12288, n);
    bench.Products("bf16", WeightFormat::kBf16, 585, 7168, n);  // a piece of the spine
    bench.Products("mxfp4", WeightFormat::kMxfp4, 3072, 3584, n);
    bench.Products("mxfp4", WeightFormat::kMxfp4, 3584, 3072, n);
    if (n > 8) continue;
    bench.Experts(3072, 3584, 32, n);
    bench.Experts(3584, 3072, 16, n);
  }
  RoundTrip(gpu);
}

}  // namespace
}  // namespace deltafin

int main(int argc, char** argv) {
  try {
    deltafin::Run(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_products: %s\n", error.what());
    return 1;
  }
  return 0;
}
