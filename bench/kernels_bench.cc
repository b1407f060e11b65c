// Single operators at the sizes of Kimi K3, on weights and states that are in no cache: for work on
// one kernel. `deltafin bench kernels` measures the same cases next to the limits of the machine.
#include <benchmark/benchmark.h>

#include <string>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "engine/operator_cases.h"

namespace deltafin {
namespace {

// The device of one instruction set and number of threads; weights are shared.
struct Subject {
  Subject(CpuIsa isa, int threads) : pool(threads), device(MakeCpuDevice(pool, isa)) {}
  static WeightArena& arena() {
    static WeightArena arena;
    return arena;
  }
  ThreadPool pool;
  std::unique_ptr<Device> device;
};

void Measure(benchmark::State& state, OperatorCase& subject) {
  for (auto _ : state) subject.Run();
  const auto runs = static_cast<double>(state.iterations());
  state.counters["bytes/s"] =
      benchmark::Counter(subject.bytes() * runs, benchmark::Counter::kIsRate);
  state.counters["flop/s"] =
      benchmark::Counter(subject.flops() * runs, benchmark::Counter::kIsRate);
}

// make: (Subject&) -> unique_ptr<OperatorCase>.
template <class Make>
void Add(const std::string& name, CpuIsa isa, int threads, Make make) {
  const std::string full =
      name + "/" + std::string(CpuIsaName(isa)) + "/threads:" + std::to_string(threads);
  benchmark::RegisterBenchmark(full.c_str(),
                               [=](benchmark::State& state) {
                                 Subject subject(isa, threads);
                                 Measure(state, *make(subject));
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

void AddAll(CpuIsa isa, int threads) {
  constexpr const char* kFormats[] = {"f32", "bf16", "int8", "mxfp4"};
  for (int f = 0; f < 4; ++f) {
    for (int64_t n : {1, 2, 4, 8, 16, 32, 128, 512}) {
      Add("MatMul/" + std::string(kFormats[f]) + "/n:" + std::to_string(n), isa, threads,
          [=](Subject& s) {
            return MakeMatMulCase(*s.device, Subject::arena(), static_cast<WeightFormat>(f), 12288,
                                  7168, n);
          });
    }
  }
  for (int64_t n : {1, 2, 8, 32, 128}) {
    Add("ExpertMlp/n:" + std::to_string(n), isa, threads,
        [=](Subject& s) { return MakeExpertCase(*s.device, Subject::arena(), n); });
  }
  for (int64_t n : {1, 8, 64}) {
    Add("KdaRecurrence/n:" + std::to_string(n), isa, threads,
        [=](Subject& s) { return MakeKdaCase(*s.device, n); });
  }
  for (int64_t context : {1024, 32768}) {
    for (CacheFormat cache : {CacheFormat::kF32, CacheFormat::kBf16}) {
      const std::string format = cache == CacheFormat::kF32 ? "f32" : "bf16";
      Add("MlaAttend/" + format + "/context:" + std::to_string(context), isa, threads,
          [=](Subject& s) { return MakeMlaCase(*s.device, cache, context, 1); });
    }
  }
}

const bool kRegistered = [] {
  for (CpuIsa isa : AvailableCpuIsas()) {
    AddAll(isa, 1);
    if (UsableProcessors() > 1) AddAll(isa, UsableProcessors());
  }
  return true;
}();

}  // namespace
}  // namespace deltafin
