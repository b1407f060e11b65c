// gpu_products [NUMBER [WORD [POSITIONS]]]: what a GPU reaches with the products of K3's widths,
// and with the operators that read states, next to its copy bandwidth; with WORD (bf16, int8, f32,
// mxfp4, kda, mla) only these, with POSITIONS only products of so many. The weights or states of
// each case are many, so that they come from memory.
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
        const GpuCommands::Piece piece{weights_.address(), other_.address(), kBytes / 4};
        commands.CopyPieces({&piece, 1}, 0);
        commands.Barrier();
      }
      gpu_.Wait(gpu_.Submit(commands));
    });
    copy_bandwidth_ = 2.0 * kBytes * kTimes / seconds;
    std::printf("copy: %.0f GB/s read and written; staging is %s\n", copy_bandwidth_ / 1e9,
                GpuBuffer(gpu_, 1, MemoryUse::kToGpu).is_local() ? "local" : "the host's");
  }

  double copy_bandwidth() const { return copy_bandwidth_; }

  void Products(const char* name, WeightFormat format, int64_t rows, int64_t cols, int64_t n) {
    const auto bytes = static_cast<uint64_t>(rows * LaidOutRowBytes(format, cols));
    const uint64_t count = std::max<uint64_t>(1, kBytes / bytes);
    const uint64_t most = n >= 64 ? 4 : count;
    const double seconds = Best(5, [&] {
      GpuCommands commands = gpu_.Begin();
      for (uint64_t i = 0; i < std::min(count, most); ++i) {
        const ProductJob job = JobOf(rows, cols, n, weights_.address() + i * bytes);
        commands.Product(format, job);
        commands.Barrier();
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

// Operators on states that stay on the GPU, by its clock.
class StateBench {
 public:
  StateBench(Gpu& gpu, double copy_bandwidth)
      : gpu_(gpu),
        copy_bandwidth_(copy_bandwidth),
        pool_(UsableProcessors()),
        device_(gpu, MakeCpuDevice(pool_), pool_, {kBytes, 0, nullptr, true, true}),
        one_(device_, sizeof(float)) {
    const float one = 1;
    device_.ToDevice(one_.address(), &one, sizeof(float));
    gpu_.StartClock(true);
  }

  void Kda() {
    constexpr int64_t kHeads = 96;
    constexpr int64_t kDim = 128;
    constexpr int64_t kWidth = kHeads * kDim;
    const DeviceBuffer inputs = OnGpu(5 * kWidth + kHeads);
    const DeviceBuffer out(device_, kWidth * sizeof(float));
    std::vector<DeviceBuffer> states;
    for (int i = 0; i < 32; ++i) states.emplace_back(device_, kWidth * kDim * sizeof(float));
    const float* const x = inputs.floats();
    const double bytes = 2.0 * kWidth * kDim * sizeof(float);
    Measure("kda step", "kda_recurrence", out, states.size(), bytes, 7.0 * kWidth * kDim, [&] {
      for (const DeviceBuffer& state : states) {
        device_.KdaRecurrence(out.floats(), state.floats(), x, x + kWidth, x + 2 * kWidth,
                              x + 3 * kWidth, x + 4 * kWidth, 1, kHeads, kDim);
      }
    });
  }

  void Mla(CacheFormat format, int64_t tokens) {
    constexpr MlaShape kShape{96, 128, 64, 128, 512};
    const int64_t floats = tokens * kShape.latent_dim() / (format == CacheFormat::kF32 ? 1 : 2);
    const DeviceBuffer absorbed = OnGpu(kShape.num_heads * kShape.latent_dim());
    const DeviceBuffer out(device_, kShape.num_heads * kShape.kv_lora * sizeof(float));
    const std::vector<float> values = Values(floats);
    std::vector<DeviceBuffer> caches;
    for (int i = 0; i < 4; ++i) {
      caches.emplace_back(device_, values.size() * sizeof(float));
      device_.ToDevice(caches.back().address(), values.data(), values.size() * sizeof(float));
    }
    const auto flops =
        static_cast<double>(2 * kShape.num_heads * tokens * (kShape.latent_dim() + kShape.kv_lora));
    const char* const name = format == CacheFormat::kF32 ? "f32" : "bf16";
    Measure(deltafin::format("mla, {} tokens, {}", tokens, name).c_str(), "mla_", out,
            caches.size(), static_cast<double>(values.size() * sizeof(float)), flops, [&] {
              for (const DeviceBuffer& cache : caches) {
                void* const page = cache.address();
                device_.MlaAttend(out.floats(), absorbed.floats(), {&page, tokens, format},
                                  tokens - 1, 1, kShape, 0.05f);
              }
            });
  }

 private:
  static std::vector<float> Values(int64_t count) {
    std::mt19937 random(1);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      const auto bits = (static_cast<uint32_t>(random()) & 0x80ff80ffu) | 0x3e003e00u;
      std::memcpy(&value, &bits, 4);
    }
    return values;
  }

  // Values that a product left there.
  DeviceBuffer OnGpu(int64_t count) {
    const std::vector<float>& values = values_.emplace_back(Values(count));
    Matrix w{WeightFormat::kF32, count, 1, reinterpret_cast<const std::byte*>(values.data())};
    w.id = values_.size();
    DeviceBuffer buffer(device_, values.size() * sizeof(float));
    device_.MatMul(w, one_.floats(), buffer.floats(), count, 1);
    return buffer;
  }

  double Seconds(const std::string& prefix) const {
    double seconds = 0;
    for (const auto& [name, kind] : gpu_.use().kinds) {
      if (name.compare(0, prefix.size(), prefix) == 0) seconds += kind.seconds;
    }
    return seconds;
  }

  // The best of some turns of `run`, which does `count` times what reads and writes `bytes`.
  void Measure(const char* name, const std::string& shaders, const DeviceBuffer& out, size_t count,
               double bytes, double flops, const std::function<void()>& run) {
    constexpr int kTurns = 8;
    double best = 1e9;
    for (int turn = 0; turn < kTurns; ++turn) {
      const double before = Seconds(shaders);
      run();
      float some = 0;
      device_.ToHost(&some, out.address(), sizeof(float));  // waits
      best = std::min(best, (Seconds(shaders) - before) / static_cast<double>(count));
    }
    std::printf("%-32s %8.1f us, %5.0f GB/s (%.2f of copy), %6.2f TFLOP/s\n", name, best * 1e6,
                bytes / best / 1e9, bytes / best / copy_bandwidth_, flops / best / 1e12);
  }

  Gpu& gpu_;
  const double copy_bandwidth_;
  ThreadPool pool_;
  VulkanDevice device_;
  DeviceBuffer one_;
  std::vector<std::vector<float>> values_;
};

void Run(size_t number, const std::string& word, int64_t positions) {
  const auto wants = [&](const std::string& name) { return word.empty() || word == name; };
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
    if (positions != 0 && n != positions) continue;
    for (const auto& [name, format] : formats) {
      if (wants(name)) bench.Products(name, format, 12288, 7168, n);
    }
    if (wants("bf16")) {
      bench.Products("bf16", WeightFormat::kBf16, 7168, 12288, n);
      for (const int64_t rows : {96, 576, 1536, 3584, 6144}) {
        bench.Products("bf16", WeightFormat::kBf16, rows, 7168, n);
      }
    }
    if (!wants("mxfp4")) continue;
    bench.Products("mxfp4", WeightFormat::kMxfp4, 3072, 3584, n);
    bench.Products("mxfp4", WeightFormat::kMxfp4, 3584, 3072, n);
    if (n > 8) continue;
    bench.Experts(3072, 3584, 32, n);
    bench.Experts(3584, 3072, 16, n);
  }
  if (wants("")) RoundTrip(gpu);
  StateBench states(gpu, bench.copy_bandwidth());
  if (wants("kda")) states.Kda();
  if (!wants("mla")) return;
  for (const int64_t tokens : {1024, 32768}) {
    states.Mla(CacheFormat::kF32, tokens);
    states.Mla(CacheFormat::kBf16, tokens);
  }
}

}  // namespace
}  // namespace deltafin

int main(int argc, char** argv) {
  try {
    deltafin::Run(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0, argc > 2 ? argv[2] : "",
                  argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_products: %s\n", error.what());
    return 1;
  }
  return 0;
}
