// The bits of k3-nano's logits are the same on every machine: one number stands for all of them.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "engine_harness.h"
#include "io/hash.h"
#include "shared_data.h"

namespace deltafin {
namespace {

// What every instruction set, number of threads and chunking gives. It changes only when
// docs/numerics.md does, and then no saved session or recorded result is comparable any more.
constexpr uint64_t kLogitsF32Cache = 6779830610282870633u;
constexpr uint64_t kLogitsBf16Cache = 6067611733594097897u;

constexpr char kText[] =
    "The capital of France is Paris. Once upon a time there was a king who had three sons, and the "
    "youngest of them was called Simpleton. 12 + 30 = 42; the planets are Mercury, Venus, Earth "
    "and "
    "Mars.\n\n\"Well,\" said the old man, \"I have never seen such a thing before.\"";

// The names under which a person may ask for the instruction sets of this machine.
std::vector<std::string> IsaFlags() {
  std::vector<std::string> flags;
  for (const char* flag : {"plain", "avx2", "avx512", "neon"}) {
    try {
      ChooseCpuIsa(flag);
      flags.emplace_back(flag);
    } catch (const Error&) {
      continue;  // this machine does not have it
    }
  }
  return flags;
}

uint64_t HashOfLogits(CacheFormat cache, const std::string& isa, int threads, int64_t chunk) {
  EngineOptions options;
  options.model_dir = NanoDir();
  options.cache_format = cache;
  options.cpu_isa = isa;
  options.spine = SpineFormat::kBf16;
  options.threads = threads;
  const auto engine = Engine::Open(options);
  const auto session = engine->NewSession();
  const std::vector<TokenId> tokens = engine->tokenizer().Encode(kText, Specials::kPlain);
  std::vector<float> all;
  for (const std::vector<float>& row : AppendAll(*session, tokens, chunk)) {
    all.insert(all.end(), row.begin(), row.end());
  }
  return Xxh3(std::as_bytes(std::span(all)));
}

TEST(BitsTest, EveryInstructionSetGivesTheSameLogits) {
  const std::vector<std::string> isas = IsaFlags();
  ASSERT_EQ(isas.size(), AvailableCpuIsas().size());
  for (const std::string& isa : isas) {
    EXPECT_EQ(HashOfLogits(CacheFormat::kF32, isa, 2, 0), kLogitsF32Cache) << isa;
    EXPECT_EQ(HashOfLogits(CacheFormat::kBf16, isa, 2, 0), kLogitsBf16Cache) << isa;
  }
}

TEST(BitsTest, ThreadsAndChunksDoNotMatter) {
  for (int threads : {1, 3}) {
    for (int64_t chunk : {1, 7, 0}) {
      EXPECT_EQ(HashOfLogits(CacheFormat::kF32, "", threads, chunk), kLogitsF32Cache)
          << threads << " threads, chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace deltafin
