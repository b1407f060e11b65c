// gpu_slice DIR [LAYERS EXPERTS VOCAB TOKENS]: makes a slice of K3 in DIR (deltafin synth) and
// decodes with the CPU alone, then with a GPU that holds the spine, then with one that holds
// experts too. Prints seconds per token and a hash of the last logits, which are the same.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/session.h"
#include "deltafin/synth.h"

namespace deltafin {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Run(const std::string& dir, DeviceChoice device, uint64_t gpu_bytes, int tokens) {
  EngineOptions options;
  options.model_dir = dir;
  options.device = device;
  options.gpu_bytes = gpu_bytes;
  options.profile = true;
  options.on_notice = [](const std::string& notice) { std::printf("  %s\n", notice.c_str()); };
  const double opened = Now();
  const auto engine = Engine::Open(options);
  std::printf("opened in %.1f s\n", Now() - opened);
  for (const std::string& line : engine->Describe()) std::printf("  %s\n", line.c_str());
  const auto session = engine->NewSession();
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
  const EngineCounters before = engine->counters();
  const double start = Now();
  for (int i = 0; i < tokens; ++i) append({i * 13 % 500}, 1);
  const double seconds = Now() - start;
  const EngineCounters counters = engine->counters() - before;
  std::printf("  %.4f s/token, logits %016lx\n", seconds / tokens,
              static_cast<unsigned long>(hash));
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    std::printf("    %-12s %.2f ms/token\n", PhaseName(static_cast<Phase>(phase)),
                1e3 * counters.seconds[phase] / tokens);
  }
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
    Run(synth.dir, DeviceChoice::kCpu, 0, tokens);
    Run(synth.dir, DeviceChoice::kGpu, spine, tokens);
    Run(synth.dir, DeviceChoice::kGpu, 0, tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_slice: %s\n", error.what());
    return 1;
  }
  return 0;
}
