// The engine with the spine in RAM, streamed, and converted to int8: same bits wherever the bytes
// come from, and memory within the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/page_memory.h"
#include "deltafin/convert.h"
#include "engine_harness.h"
#include "io/memory_limits.h"
#include "least_budget.h"
#include "reference/odd_checkpoints.h"
#include "reference/oracle_data.h"
#include "shared_data.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A model folder that may be written to: links to the files of another.
class LinkedModel {
 public:
  explicit LinkedModel(const std::string& source) {
    for (const auto& entry : fs::directory_iterator(source)) {
      if (!entry.is_regular_file()) continue;  // not what earlier runs keep beside the files
      fs::create_symlink(fs::absolute(entry.path()),
                         dir() + "/" + entry.path().filename().string());
    }
  }
  const std::string& dir() const { return folder_.path(); }

 private:
  reference::TemporaryFolder folder_;
};

EngineOptions Options(const std::string& dir, uint64_t ram_bytes, SpineFormat spine) {
  EngineOptions options;
  options.model_dir = dir;
  options.threads = 2;
  options.ram_bytes = ram_bytes;
  options.context_tokens = 256;
  options.spine = spine;
  return options;
}

std::string PlanNote(const Engine& engine, const std::string& what) {
  for (const PlanLine& line : engine.plan()) {
    if (line.what == what) return line.note;
  }
  return "";
}

std::vector<TokenId> SomeTokens() {
  auto ids = reference::LoadNanoPrompts().at(5).AllIds();
  ids.resize(std::min<size_t>(ids.size(), 90));
  return {ids.begin(), ids.end()};
}

class StreamedSpine : public testing::TestWithParam<SpineFormat> {
 protected:
  StreamedSpine() : model_(NanoDir()) {
    if (GetParam() == SpineFormat::kInt8) ConvertSpineToInt8({dir(), {}, 2, nullptr});
  }
  const std::string& dir() const { return model_.dir(); }

 private:
  LinkedModel model_;
};

TEST_P(StreamedSpine, BitsDoNotDependOnTheBudget) {
  const auto tokens = SomeTokens();
  const auto resident = Engine::Open(Options(dir(), 1 << 30, GetParam()));
  EXPECT_EQ(PlanNote(*resident, "spine"), "all of it");
  const auto want = AppendAll(*resident->NewSession(), tokens, 0);
  const uint64_t least = LeastRam(Options(dir(), 1, GetParam()));
  bool streamed = false;
  for (const uint64_t more : {uint64_t{0}, 2 * kMiB, 6 * kMiB, 12 * kMiB, 24 * kMiB}) {
    EngineOptions options = Options(dir(), least + more, GetParam());
    const auto engine = OpenAndFollow(options);
    const std::string note = PlanNote(*engine, "spine");
    streamed |= note != "all of it";
    const auto session = engine->NewSession();
    EXPECT_EQ(AppendAll(*session, tokens, 0), want) << note;
    // A pass that is cancelled halfway leaves the ring somewhere else.
    int asked = 0;
    const auto cancelled = engine->NewSession();
    EXPECT_THROW(cancelled->Append(tokens, 0, nullptr, [&] { return ++asked > 6; }), Error);
    EXPECT_EQ(AppendAll(*engine->NewSession(), tokens, 7), want) << note << " after cancelling";
  }
  EXPECT_TRUE(streamed);
}

#ifdef NDEBUG  // a sanitizer's own memory says nothing
uint64_t PlanBytes(const Engine& engine, const std::string& what) {
  for (const PlanLine& line : engine.plan()) {
    if (line.what == what) return line.bytes;
  }
  ADD_FAILURE() << "no plan line " << what;
  return 0;
}

TEST_P(StreamedSpine, MemoryStaysWithinTheBudget) {
  const auto tokens = SomeTokens();
  // Program and heap differ a little from one opening to the next.
  const uint64_t least = LeastRam(Options(dir(), 1, GetParam())) + kMiB;
  for (const uint64_t more : {uint64_t{0}, 4 * kMiB, 10 * kMiB, 30 * kMiB}) {
    TrimHeap();
    const auto engine = Engine::Open(Options(dir(), least + more, GetParam()));
    std::ofstream("/proc/self/clear_refs") << "5";  // forget the peak
    const auto session = engine->NewSession();
    session->Append(tokens, 0, nullptr, nullptr);
    GenerateGreedy(*session, {}, 20);
    const uint64_t peak = ReadProcessMemory().peak_resident_bytes;
    const uint64_t budget = PlanBytes(*engine, "budget");
    EXPECT_EQ(budget, least + more);
    EXPECT_LE(peak, budget);
    std::printf("budget %.1f MiB, peak %.1f MiB, program %.1f MiB, unused %.1f MiB, %s\n",
                static_cast<double>(budget) / kMiB, static_cast<double>(peak) / kMiB,
                static_cast<double>(PlanBytes(*engine, "program")) / kMiB,
                static_cast<double>(PlanBytes(*engine, "unused")) / kMiB,
                PlanNote(*engine, "spine").c_str());
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(All, StreamedSpine,
                         testing::Values(SpineFormat::kBf16, SpineFormat::kInt8),
                         [](const auto& test) {
                           return test.param == SpineFormat::kInt8 ? "int8" : "bf16";
                         });

std::string ErrorOf(const EngineOptions& options) {
  try {
    Engine::Open(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Int8Spine, IsChosenWhenItIsThere) {
  const LinkedModel model(NanoDir());
  const auto describe = [&](SpineFormat spine) {
    const auto engine = Engine::Open(Options(model.dir(), 0, spine));
    std::string all;
    for (const std::string& line : engine->Describe()) all += line + "\n";
    return all;
  };
  const std::string command = "deltafin convert spine --to int8 --model " + model.dir();
  EXPECT_THAT(describe(SpineFormat::kAuto), testing::HasSubstr("spine bf16 (as released)"));
  EXPECT_THAT(ErrorOf(Options(model.dir(), 0, SpineFormat::kInt8)),
              testing::HasSubstr("there is none); run: " + command));
  ConvertSpineToInt8({model.dir(), {}, 2, nullptr});
  EXPECT_THAT(describe(SpineFormat::kAuto),
              testing::HasSubstr("int8 (converted: not the released"));
  EXPECT_THAT(describe(SpineFormat::kBf16), testing::HasSubstr("spine bf16 (as released)"));

  const std::string layer = model.dir() + "/.deltafin/spine-int8/layer-004";
  fs::resize_file(layer, 5000);
  EXPECT_THAT(ErrorOf(Options(model.dir(), 0, SpineFormat::kAuto)),
              testing::AllOf(testing::HasSubstr(layer), testing::HasSubstr(command)));
  ConvertSpineToInt8({model.dir(), {}, 2, nullptr});

  std::ofstream(model.dir() + "/.deltafin/spine-int8/manifest.json") << "{}";
  EXPECT_THAT(describe(SpineFormat::kAuto),
              testing::AllOf(testing::HasSubstr("spine bf16 (as released)"),
                             testing::HasSubstr("the int8 spine is not used: ")));
}

// Log of the sum of the exponentials: -log likelihood of id i is this less logits[i].
double LogSum(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return std::log(sum) + max;
}

// docs/quality.md has the figures of the whole text.
TEST(Int8Spine, QualityOnHeldOutText) {
  const LinkedModel model(NanoDir());
  ConvertSpineToInt8({model.dir(), {}, 2, nullptr});
  const auto oracle = reference::LoadNanoNll();
  const char* all = std::getenv("DELTAFIN_ALL_TOKENS");  // 2,000 take a minute with plain kernels
  const size_t count = all != nullptr ? oracle.ids.size() : 400;
  const auto ids = std::span(oracle.ids).first(count);
  std::vector<std::vector<float>> rows[2];
  for (const bool int8 : {false, true}) {
    EngineOptions options = Options(model.dir(), 0, int8 ? SpineFormat::kInt8 : SpineFormat::kBf16);
    options.context_tokens = 2048;
    const auto engine = Engine::Open(options);
    rows[int8] = AppendAll(*engine->NewSession(), ids, 256);
  }
  double nll[2] = {};
  double square = 0, divergence = 0;
  int64_t same_choice = 0;
  for (size_t pos = 0; pos + 1 < count; ++pos) {
    const auto& a = rows[0][pos];
    const auto& b = rows[1][pos];
    const double a_sum = LogSum(a), b_sum = LogSum(b);
    const auto next = static_cast<size_t>(ids[pos + 1]);
    nll[0] += a_sum - a[next];
    nll[1] += b_sum - b[next];
    same_choice += std::max_element(a.begin(), a.end()) - a.begin() ==
                   std::max_element(b.begin(), b.end()) - b.begin();
    for (size_t i = 0; i < a.size(); ++i) {
      divergence += std::exp(a[i] - a_sum) * ((a[i] - a_sum) - (b[i] - b_sum));
      square += (a[i] - b[i]) * (a[i] - b[i]);
    }
  }
  const auto n = static_cast<double>(count - 1);
  std::printf(
      "k3-nano, %d tokens: mean NLL bf16 %.6f, int8 %.6f (%+.6f); same choice at %.2f %%; "
      "mean KL %.2e nats; logit RMS difference %.4f\n",
      static_cast<int>(count), nll[0] / n, nll[1] / n, (nll[1] - nll[0]) / n,
      100 * static_cast<double>(same_choice) / n, divergence / n,
      std::sqrt(square / n / static_cast<double>(rows[0][0].size())));
  // Not lossless, and not far: 1 % noise on the weights. A wrong scale or a lost row costs whole
  // nats.
  EXPECT_NE(nll[1], nll[0]);
  EXPECT_NEAR(nll[1] / n, nll[0] / n, 0.02);
  EXPECT_GE(static_cast<double>(same_choice) / n, 0.95);
}

}  // namespace
}  // namespace deltafin
