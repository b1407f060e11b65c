// gpu_slice DIR [LAYERS EXPERTS VOCAB TOKENS [PLACEMENTS]]: makes a slice of K3 in DIR (deltafin
// synth) and decodes with each of PLACEMENTS, "cse" unless told otherwise: c is the CPU alone, s a
// GPU that holds the spine, e one that holds experts too, k the same and p the spine alone, slowed
// down by a look at where its time goes. Prints seconds per token, a hash of all logits, which is
// the same for all, and the longest of what GPU, CPU and the link between them took of a token, to
// the whole of it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "deltafin/session.h"
#include "deltafin/synth.h"
#include "engine/engine_impl.h"

namespace deltafin {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time of tokens by the moments at which the router's picks are there: between two of them are
// the experts of a layer and the attention of the next one.
class LayerClock {
 public:
  explicit LayerClock(const ModelConfig& config) : config_(config) {}
  void Begin() { last_ = Now(); }
  void OnPicks(int64_t layer) {
    Span& span = layer == config_.first_k_dense_replace ? first_
                 : config_.is_mla[layer]                ? mla_
                                                        : kda_;
    AddTo(span);
  }
  void End() { AddTo(end_); }

  // K3 has a dense layer, 68 more with KDA and 24 with MLA; its head is as much longer as its
  // vocabulary is, which takes `head_seconds`.
  void PrintK3(double head_seconds) const {
    if (kda_.count == 0 || mla_.count == 0) return;
    const double seconds = first_.each() + 67 * kda_.each() + 24 * mla_.each() + end_.each();
    std::printf(
        "    to the first picks %.2f ms, a KDA layer %.2f, an MLA layer %.2f, after the last picks "
        "%.2f\n    extrapolated to K3's 93 layers: %.4f s/token\n",
        1e3 * first_.each(), 1e3 * kda_.each(), 1e3 * mla_.each(), 1e3 * end_.each(),
        seconds + head_seconds);
  }

 private:
  struct Span {
    double each() const { return count == 0 ? 0.0 : seconds / count; }
    double seconds = 0;
    int count = 0;
  };
  void AddTo(Span& span) {
    const double now = Now();
    span.seconds += now - last_;
    ++span.count;
    last_ = now;
  }

  const ModelConfig& config_;
  double last_ = 0;
  Span first_;
  Span kda_;
  Span mla_;
  Span end_;
};

// Bytes per second to the GPU and back.
double LinkRate(Gpu& gpu) {
  constexpr uint64_t kBytes = uint64_t{256} << 20;
  const GpuBuffer to(gpu, kBytes, MemoryUse::kToGpu);
  const GpuBuffer from(gpu, kBytes, MemoryUse::kFromGpu);
  const GpuBuffer there(gpu, kBytes, MemoryUse::kScratch);
  double best = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const double start = Now();
    GpuCommands commands = gpu.Begin();
    commands.Copy(there, 0, to, 0, kBytes);
    commands.Barrier();
    commands.Copy(from, 0, there, 0, kBytes);
    gpu.Wait(gpu.Submit(commands));
    best = std::max(best, 2.0 * kBytes / (Now() - start));
  }
  return best;
}

void PrintUse(const GpuUse& now, const GpuUse& before, int tokens, double seconds,
              double link_rate) {
  const auto each = [tokens](double all) { return all / tokens; };
  const double gpu = each(now.busy_seconds - before.busy_seconds);
  const double cpu = seconds - each(now.wait_seconds - before.wait_seconds);
  const auto bytes = each(static_cast<double>(now.link_bytes - before.link_bytes));
  const double link = bytes / link_rate;
  std::printf(
      "    GPU %.2f ms, CPU %.2f ms, link %.2f ms (%.2f MB at %.1f GB/s): %.2f of the time is the "
      "longest\n    %.0f submissions, %.0f shaders, %.0f barriers a token\n",
      gpu * 1e3, cpu * 1e3, link * 1e3, bytes / 1e6, link_rate / 1e9,
      std::max({gpu, cpu, link}) / seconds,
      each(static_cast<double>(now.submissions - before.submissions)),
      each(static_cast<double>(now.dispatches - before.dispatches)),
      each(static_cast<double>(now.barriers - before.barriers)));
  for (const auto& [name, kind] : now.kinds) {
    GpuUse::Kind earlier;
    if (const auto found = before.kinds.find(name); found != before.kinds.end()) {
      earlier = found->second;
    }
    std::printf("      %-32s %6.1f a token, %8.1f us\n", name.c_str(),
                each(static_cast<double>(kind.count - earlier.count)),
                1e6 * each(kind.seconds - earlier.seconds));
  }
}

void Decode(const std::string& dir, char placement, uint64_t spine_bytes, int tokens) {
  constexpr double kK3Vocab = 163840;
  EngineOptions options;
  options.model_dir = dir;
  options.device = placement == 'c' ? DeviceChoice::kCpu : DeviceChoice::kGpu;
  options.gpu_bytes = placement == 's' || placement == 'p' ? spine_bytes : 0;
  options.profile = true;
  options.on_notice = [](const std::string& notice) { std::printf("  %s\n", notice.c_str()); };
  const double opened = Now();
  EngineImpl engine(options);
  std::printf("opened in %.1f s\n", Now() - opened);
  for (const std::string& line : engine.Describe()) std::printf("  %s\n", line.c_str());
  Gpu* const gpu = engine.gpu();
  const double link_rate = gpu == nullptr ? 1 : LinkRate(*gpu);
  if (gpu != nullptr) gpu->StartClock(placement == 'k' || placement == 'p');
  const auto session = engine.NewSession();
  uint64_t hash = 14695981039346656037u;
  const auto append = [&](std::vector<TokenId> ids, int64_t chunk) {
    session->Append(
        ids, chunk,
        [&](int64_t, std::span<const float> logits) {
          for (const float logit : logits) {
            uint32_t bits = 0;
            std::memcpy(&bits, &logit, 4);
            hash = (hash ^ bits) * 1099511628211u;
          }
        },
        nullptr);
  };
  std::vector<TokenId> prompt;
  for (int i = 0; i < 256; ++i) prompt.push_back(i * 37 % 500);
  for (int pass = 0; pass < 3; ++pass) {
    const double start = Now();
    append(prompt, 256);
    std::printf("  256 positions in one pass: %.3f s\n", Now() - start);
  }
  for (int warm = 0; warm < 4; ++warm) append({warm * 11 + 3}, 1);
  LayerClock layers(engine.config());
  session->SetOnRouterPicks([&](const RouterPicks& picks) { layers.OnPicks(picks.layer); });
  const EngineCounters before = engine.counters();
  const GpuUse use_before = gpu == nullptr ? GpuUse{} : gpu->use();
  const double start = Now();
  for (int i = 0; i < tokens; ++i) {
    layers.Begin();
    append({i * 13 % 500}, 1);
    layers.End();
  }
  const double seconds = (Now() - start) / tokens;
  const EngineCounters counters = engine.counters() - before;
  std::printf("  %.4f s/token, logits %016lx\n", seconds, static_cast<unsigned long>(hash));
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    std::printf("    %-12s %.2f ms/token\n", PhaseName(static_cast<Phase>(phase)),
                1e3 * counters.seconds[phase] / tokens);
  }
  if (gpu != nullptr) PrintUse(gpu->use(), use_before, tokens, seconds, link_rate);
  // The head is read at the rate of a GPU's, or of a CPU's, memory.
  const double head = counters.phase_seconds(Phase::kHead) / tokens;
  const double vocab_ratio = kK3Vocab / static_cast<double>(engine.config().vocab_size);
  constexpr double kGpuRate = 4e12;
  layers.PrintK3(gpu == nullptr
                     ? head * (vocab_ratio - 1)
                     : (kK3Vocab - static_cast<double>(engine.config().vocab_size)) *
                           static_cast<double>(engine.config().hidden_size) * 2 / kGpuRate);
}

}  // namespace
}  // namespace deltafin

int main(int argc, char** argv) {
  using namespace deltafin;
  if (argc < 2) return 2;
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  try {
    SynthOptions synth;
    synth.dir = argv[1];
    synth.layers = number(2, 4);
    synth.experts = number(3, 64);
    synth.vocab = number(4, 8192);
    synth.no_vision = true;
    const double start = Now();
    WriteSynth(synth);
    std::printf("written in %.1f s\n", Now() - start);
    const int tokens = number(5, 32);
    const auto spine = static_cast<uint64_t>(synth.layers) * 1'350'000'000 + 1'000'000'000;
    for (const char* placement = argc > 6 ? argv[6] : "cse"; *placement != 0; ++placement) {
      Decode(synth.dir, *placement, spine, tokens);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_slice: %s\n", error.what());
    return 1;
  }
  return 0;
}
