// Single operators at the sizes of Kimi K3, on weights and states that are not in a cache, next to
// the limits of the machine at that moment. docs/performance.md says how to run it.
//
// Counters: GB/s or GFLOPS of the best iteration, and its ratio to the limit (read bandwidth of as
// many threads, or the peak of the same instruction set) measured just before. The best iteration,
// because another process on the same cores can only make one slower.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "bench/limits.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

constexpr int64_t kHidden = 7168;
constexpr int64_t kLatent = 3584;
constexpr int64_t kWidth = 3072;
constexpr int64_t kHeads = 96;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Random bytes that are sane values in every format: weights need not mean anything here, but they
// must be finite and no subnormals.
void FillWeights(std::byte* data, size_t bytes, WeightFormat format) {
  std::mt19937 random(1);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
  const size_t width = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBf16 ? 2 : 0;
  for (size_t i = width - 1; width != 0 && i < bytes; i += width) {
    data[i] = (data[i] & std::byte{0x80}) | std::byte{0x3d};
  }
}

struct Weights {
  Weights(WeightFormat format, int64_t rows, int64_t cols) {
    matrix.format = format;
    matrix.rows = rows;
    matrix.cols = cols;
    data = AlignedBuffer<std::byte>(static_cast<size_t>(rows * matrix.row_bytes()));
    FillWeights(data.data(), std::min<size_t>(data.size(), size_t{1} << 22), format);
    for (size_t at = size_t{1} << 22; at < data.size(); at += size_t{1} << 22) {
      std::copy_n(data.data(), std::min(data.size() - at, size_t{1} << 22), data.data() + at);
    }
    if (format == WeightFormat::kInt8) {
      scales = AlignedBuffer<std::byte>(static_cast<size_t>(rows) * 4);
      const float scale = 0.01f;
      for (int64_t r = 0; r < rows; ++r) __builtin_memcpy(scales.data() + 4 * r, &scale, 4);
    } else if (format == WeightFormat::kMxfp4) {
      scales = AlignedBuffer<std::byte>(static_cast<size_t>(rows * cols / 32));
      std::fill_n(scales.data(), scales.size(), std::byte{120});
    }
    matrix.data = data.data();
    matrix.scales = scales.data();
  }
  int64_t bytes() const { return static_cast<int64_t>(data.size() + scales.size()); }

  Matrix matrix;
  AlignedBuffer<std::byte> data;
  AlignedBuffer<std::byte> scales;
};

// Weights are made once per format and shape.
const Weights& CachedWeights(WeightFormat format, int64_t rows, int64_t cols) {
  static std::map<std::tuple<WeightFormat, int64_t, int64_t>, std::unique_ptr<Weights>> cache;
  auto& slot = cache[{format, rows, cols}];
  if (slot == nullptr) slot = std::make_unique<Weights>(format, rows, cols);
  return *slot;
}

AlignedBuffer<float> RandomFloats(int64_t count) {
  AlignedBuffer<float> values(static_cast<size_t>(count));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& v : values) v = normal(random);
  return values;
}

// A device of the benchmark's instruction set and number of threads (the first two arguments).
struct Bench {
  explicit Bench(benchmark::State& state)
      : state_(state),
        isa(static_cast<CpuIsa>(state.range(0))),
        pool(static_cast<int>(state.range(1))),
        device(MakeCpuDevice(pool, isa)) {}

  // Times `run` and reports against the limits; `bytes` or `flops` may be 0.
  template <class Run>
  void Measure(double bytes, double flops, const Run& run) {
    const double read = bytes > 0 ? ReadBytesPerSecond(pool, 3) : 0;
    const double peak = flops > 0 ? PeakFlops(pool, isa, 3) : 0;
    run();
    double best = 1e30;
    for (auto _ : state_) {
      const double begin = Seconds();
      run();
      best = std::min(best, Seconds() - begin);
    }
    if (bytes > 0) {
      state_.counters["GB/s"] = bytes / best * 1e-9;
      state_.counters["of_read"] = bytes / best / read;
    }
    if (flops > 0) {
      state_.counters["GFLOPS"] = flops / best * 1e-9;
      state_.counters["of_peak"] = flops / best / peak;
    }
    state_.counters["best_us"] = best * 1e6;
  }

  benchmark::State& state_;
  CpuIsa isa;
  ThreadPool pool;
  std::unique_ptr<Device> device;
};

void LimitRead(benchmark::State& state) {
  Bench bench(state);
  for (auto _ : state) {
    state.counters["GB/s"] = ReadBytesPerSecond(bench.pool) * 1e-9;
    state.counters["GFLOPS"] = PeakFlops(bench.pool, bench.isa) * 1e-9;
  }
}

// One spine projection, [12288, 7168]: 44 (MXFP4) to 352 MB (f32), twice to be cold.
void MatMul(benchmark::State& state) {
  Bench bench(state);
  const auto format = static_cast<WeightFormat>(state.range(2));
  const int64_t n = state.range(3);
  const Weights& w = CachedWeights(format, 2 * 12288, kHidden);
  const AlignedBuffer<float> x = RandomFloats(n * kHidden);
  AlignedBuffer<float> y(static_cast<size_t>(n * w.matrix.rows));
  bench.Measure(static_cast<double>(w.bytes()),
                n >= 16 ? 2.0 * static_cast<double>(w.matrix.rows * kHidden * n) : 0,
                [&] { bench.device->MatMul(w.matrix, x.data(), y.data(), w.matrix.rows, n); });
}

// 16 routed experts for n positions each: 281 MB.
void ExpertMlp(benchmark::State& state) {
  Bench bench(state);
  const int64_t n = state.range(2);
  constexpr int64_t kExperts = 16;
  const Weights& w1 = CachedWeights(WeightFormat::kMxfp4, 2 * kExperts * kWidth, kLatent);
  const Weights& w2 = CachedWeights(WeightFormat::kMxfp4, kExperts * kLatent, kWidth);
  const auto slice = [](const Matrix& all, int64_t first, int64_t rows) {
    Matrix part = all;
    part.rows = rows;
    part.data += first * all.row_bytes();
    part.scales += first * all.cols / 32;
    return part;
  };
  std::vector<int32_t> in(static_cast<size_t>(n)), out(static_cast<size_t>(n * kExperts));
  for (int64_t i = 0; i < n; ++i) in[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(i);
  std::vector<ExpertTask> tasks;
  for (int64_t e = 0; e < kExperts; ++e) {
    ExpertTask task;
    task.weights = {slice(w1.matrix, 2 * e * kWidth, kWidth),
                    slice(w1.matrix, (2 * e + 1) * kWidth, kWidth),
                    slice(w2.matrix, e * kLatent, kLatent)};
    task.in_rows = in.data();
    task.out_rows = out.data() + e * n;
    task.num_rows = n;
    tasks.push_back(task);
  }
  const AlignedBuffer<float> z = RandomFloats(n * kLatent);
  AlignedBuffer<float> y(static_cast<size_t>(n * kExperts * kLatent));
  const double flops = 2.0 * 3.0 * static_cast<double>(kExperts * kWidth * kLatent * n);
  bench.Measure(static_cast<double>(w1.bytes() + w2.bytes()), n >= 8 ? flops : 0,
                [&] { bench.device->ExpertMlp(tasks, z.data(), y.data(), kLatent, SituParams{}); });
}

// The states of 16 layers in turn: 100 MB, each read and written.
void KdaStep(benchmark::State& state) {
  Bench bench(state);
  constexpr int64_t kDim = 128;
  constexpr int64_t kLayers = 16;
  const int64_t n = state.range(2);
  const int64_t count = n * kHeads * kDim;
  const AlignedBuffer<float> q = RandomFloats(count);
  AlignedBuffer<float> alpha(static_cast<size_t>(count)), k(static_cast<size_t>(count));
  std::fill_n(alpha.data(), count, 0.9f);
  std::fill_n(k.data(), count, 0.08f);
  AlignedBuffer<float> beta(static_cast<size_t>(n * kHeads)), out(static_cast<size_t>(count));
  std::fill_n(beta.data(), n * kHeads, 0.5f);
  const int64_t state_floats = kHeads * kDim * kDim;
  AlignedBuffer<float> states = RandomFloats(kLayers * state_floats);
  bench.Measure(static_cast<double>(kLayers * state_floats) * 8.0,
                n > 1 ? 9.0 * static_cast<double>(kLayers * state_floats * n) : 0, [&] {
                  for (int64_t layer = 0; layer < kLayers; ++layer) {
                    bench.device->KdaRecurrence(out.data(), states.data() + layer * state_floats,
                                                q.data(), k.data(), q.data(), alpha.data(),
                                                beta.data(), n, kHeads, kDim);
                  }
                });
}

const MlaShape kMla{kHeads, 128, 64, 128, 512};

// n positions after `context` tokens.
void MlaAttend(benchmark::State& state) {
  Bench bench(state);
  const int64_t context = state.range(2);
  const int64_t n = state.range(3);
  const bool bf16 = state.range(4) != 0;
  constexpr int64_t kPage = 1024;
  const int64_t tokens = context + n;
  const int64_t num_pages = (tokens + kPage - 1) / kPage;
  const int64_t page_floats = kPage * kMla.latent_dim();
  AlignedBuffer<float> memory(static_cast<size_t>(num_pages * page_floats));
  std::vector<void*> pages;
  for (int64_t i = 0; i < num_pages; ++i) pages.push_back(memory.data() + i * page_floats);
  LatentCacheView cache;
  cache.pages = pages.data();
  cache.page_tokens = kPage;
  cache.format = bf16 ? CacheFormat::kBf16 : CacheFormat::kF32;
  const AlignedBuffer<float> latent = RandomFloats(kPage * kMla.latent_dim());
  for (int64_t t = 0; t < tokens; t += kPage) {
    bench.device->MlaAppend(cache, latent.data(), t, std::min(kPage, tokens - t), kMla);
  }
  const AlignedBuffer<float> q = RandomFloats(n * kHeads * kMla.latent_dim());
  AlignedBuffer<float> out(static_cast<size_t>(n * kHeads * kMla.kv_lora));
  const double pairs = static_cast<double>(kHeads * n) *
                       (static_cast<double>(context) + static_cast<double>(n + 1) / 2);
  bench.Measure(0, pairs * 2.0 * static_cast<double>(kMla.latent_dim() + kMla.kv_lora), [&] {
    bench.device->MlaAttend(out.data(), q.data(), cache, context, n, kMla, 0.07f);
  });
}

void MlaProjections(benchmark::State& state) {
  Bench bench(state);
  const int64_t n = state.range(2);
  const Weights& w = CachedWeights(WeightFormat::kBf16, 4 * kHeads * 256, 512);  // 4 layers, 100 MB
  const AlignedBuffer<float> q = RandomFloats(n * kHeads * 576);
  AlignedBuffer<float> out(static_cast<size_t>(n * kHeads * 576));
  const double flops = 4.0 * 2.0 * static_cast<double>(n * kHeads * 256 * 512);
  bench.Measure(static_cast<double>(w.bytes()), n >= 16 ? flops : 0, [&] {
    for (int64_t layer = 0; layer < 4; ++layer) {
      Matrix kv_b = w.matrix;
      kv_b.rows = kHeads * 256;
      kv_b.data += layer * kv_b.rows * kv_b.row_bytes();
      bench.device->MlaAbsorbQuery(out.data(), kv_b, q.data(), n, kMla);
      bench.device->MlaExpandValue(out.data(), kv_b, q.data(), n, kMla);
    }
  });
}

// What is left of a KDA layer with its mixture of experts at n positions: everything small.
void SmallOperators(benchmark::State& state) {
  Bench bench(state);
  const int64_t n = state.range(2);
  const AlignedBuffer<float> x = RandomFloats(12288 * n + 9 * kHidden * n);
  const AlignedBuffer<float> w = RandomFloats(12288 * 4);
  AlignedBuffer<float> y(static_cast<size_t>(12288 * n)), f(static_cast<size_t>(12288 * n));
  AlignedBuffer<float> history(3 * 12288), beta(static_cast<size_t>(kHeads * n));
  std::vector<int32_t> ids(static_cast<size_t>(16 * n));
  std::vector<float> weights(static_cast<size_t>(16 * n), 0.1f);
  RouterParams router;
  router.num_experts = 896;
  router.top_k = 16;
  Device& d = *bench.device;
  bench.Measure(0, 0, [&] {
    for (int i = 0; i < 2; ++i) {
      d.ResidualMix(y.data(), x.data(), n * kHidden, 8, x.data() + 8 * n * kHidden, w.data(), n,
                    kHidden, 1e-5f);
      d.RmsNorm(y.data(), y.data(), w.data(), n, kHidden, kHidden, 1e-5f);
    }
    for (int i = 0; i < 3; ++i) {
      d.ShortConv(y.data(), x.data(), w.data(), history.data(), n, 12288);
    }
    for (int i = 0; i < 2; ++i) d.L2Normalize(y.data(), n * kHeads, 128, 1.0f);
    d.KdaGates(f.data(), beta.data(), w.data(), w.data(), n, kHeads, 128, -5.0f);
    d.GatedRmsNorm(y.data(), f.data(), w.data(), n * kHeads, 128, 1e-5f);
    d.RouterTopK(ids.data(), weights.data(), x.data(), w.data(), n, router);
    d.SituGlu(y.data(), x.data(), f.data(), n * 6144, SituParams{});
    d.CombineExperts(y.data(), x.data(), weights.data(), n, 1, kLatent);
    d.Add(y.data(), x.data(), n * kHidden);
  });
}

void Register() {
  const int64_t most = std::min<int64_t>(UsableProcessors(), 64);
  for (CpuIsa isa : AvailableCpuIsas()) {
    if (isa == CpuIsa::kPlain) continue;
    for (int64_t threads : {int64_t{1}, most}) {
      const std::string at =
          "/" + std::string(CpuIsaName(isa)) + "/threads:" + std::to_string(threads);
      const auto id = static_cast<int64_t>(isa);
      const auto add = [&](const std::string& name, void (*run)(benchmark::State&),
                           std::vector<int64_t> args) {
        args.insert(args.begin(), {id, threads});
        benchmark::RegisterBenchmark((name + at).c_str(), run)
            ->Args(args)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      };
      add("Limits", LimitRead, {});
      const char* const formats[] = {"f32", "bf16", "int8", "mxfp4"};
      for (int64_t f = 0; f < 4; ++f) {
        for (int64_t n : {1, 2, 4, 8, 16, 32, 128, 256}) {
          add("MatMul/" + std::string(formats[f]) + "/n:" + std::to_string(n), MatMul, {f, n});
        }
      }
      for (int64_t n : {1, 2, 4, 8, 16, 32, 128}) {
        add("ExpertMlp/n:" + std::to_string(n), ExpertMlp, {n});
      }
      for (int64_t n : {1, 64}) add("KdaStep/n:" + std::to_string(n), KdaStep, {n});
      add("MlaAttend/32k/n:1/f32", MlaAttend, {32768, 1, 0});
      add("MlaAttend/32k/n:1/bf16", MlaAttend, {32768, 1, 1});
      add("MlaAttend/2k/n:64/f32", MlaAttend, {2048, 64, 0});
      for (int64_t n : {1, 128}) {
        add("MlaProjections/n:" + std::to_string(n), MlaProjections, {n});
      }
      for (int64_t n : {1, 64}) {
        add("SmallOperators/n:" + std::to_string(n), SmallOperators, {n});
      }
    }
  }
}

}  // namespace
}  // namespace deltafin

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  deltafin::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
