// Opening a checkpoint of the release's size: 93 layers, 82,432 experts, 497,052 text tensors,
// 1.56 TB of holes.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "deltafin/error.h"
#include "shared_data.h"
#include "store/checkpoint.h"
#include "store/testing/skeleton.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

int64_t PeakMemoryBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(CheckpointScaleTest, OpensTheSkeletonOfTheRelease) {
  SHARED_OR_SKIP(config_path, "fixtures/config.json");
  const std::string json = ReadWholeFile(RealFileSystem(), config_path, 1 << 20);
  const ModelConfig config = ModelConfig::Parse(json, config_path);
  const TempDir dir;
  try {
    WriteSkeleton(config, json, dir.path());
  } catch (const Error& e) {
    GTEST_SKIP() << "this file system has no sparse files of this size: " << e.what();
  }

  const int64_t before_bytes = PeakMemoryBytes();
  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), dir.path());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t used_bytes = PeakMemoryBytes() - before_bytes;
  RecordProperty("open_ms", static_cast<int>(seconds * 1000));
  RecordProperty("open_peak_mb", static_cast<int>(used_bytes / 1000000));
  std::printf("open: %.2f s, %.0f MB above the writer's peak\n", seconds,
              static_cast<double>(used_bytes) / 1e6);

  EXPECT_EQ(checkpoint->num_shards(), 94u);
  EXPECT_EQ(checkpoint->expert_bytes(), 17547264u);
  // Tensor bytes of the text model: total_size less vision tower and projector (spec 2.6).
  const uint64_t text_bytes = 1560860324864u - 802428928u - 92289024u;
  EXPECT_GT(checkpoint->total_bytes(), text_bytes);
  EXPECT_LT(checkpoint->total_bytes(), text_bytes + 100000000u);  // the headers
  // Decimal-string order: expert 2 is at rank 112, 99 last (spec 2.4).
  const uint64_t first = checkpoint->ExpertSpan(92, 0).offset;
  EXPECT_EQ(checkpoint->ExpertSpan(92, 2).offset, first + 112 * checkpoint->expert_bytes());
  EXPECT_EQ(checkpoint->ExpertSpan(92, 99).offset, first + 895 * checkpoint->expert_bytes());

#ifdef NDEBUG
  // 80 MB; the memory of builds with sanitizers says nothing. How long it takes is measured by
  // scripts/prove-2gib.
  EXPECT_LT(used_bytes, 160000000);
#endif
}

}  // namespace
}  // namespace deltafin
