#include "store/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "deltafin/error.h"
#include "io/read_queue.h"
#include "shared_data.h"
#include "store/int8_spine.h"
#include "store/spine_pieces.h"
#include "store/testing/skeleton.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

MemoryLimits Machine(uint64_t bytes, uint64_t available = 0) {
  return {bytes, available, bytes, "physical memory"};
}

// Rises by 700 KB per position, as the release's scratch does.
PlanRequest Request(uint64_t ram_bytes, uint64_t program_bytes, uint64_t state_bytes,
                    uint64_t position_bytes) {
  PlanRequest request;
  request.ram_bytes = ram_bytes;
  request.program_bytes = program_bytes;
  request.state_bytes = state_bytes;
  request.max_positions = 512;
  request.workspace_bytes = [position_bytes](int64_t positions) {
    return 1000 + static_cast<uint64_t>(positions) * position_bytes;
  };
  return request;
}

void CheckSums(const MemoryPlan& plan, const SpineSource& spine, const PlanRequest& request) {
  ASSERT_LE(plan.used_bytes(), plan.budget_bytes);
  ASSERT_LE(plan.budget_bytes, plan.limit_bytes);
  ASSERT_GE(plan.positions, 1);
  ASSERT_EQ(plan.workspace_bytes, request.workspace_bytes(plan.positions));
  const SpinePieces pieces(spine, plan.spine.piece_bytes);
  uint64_t resident_bytes = 0;
  uint64_t streamed_bytes = 0;
  size_t resident = 0;
  ASSERT_EQ(plan.spine.resident.size(), pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!plan.spine.resident[i]) {
      streamed_bytes += pieces[i].bytes;
      continue;
    }
    ++resident;
    resident_bytes += ReadBufferBytes(pieces[i].bytes);
  }
  ASSERT_EQ(resident_bytes, plan.spine_bytes);
  ASSERT_EQ(streamed_bytes, plan.streamed_spine_bytes);
  ASSERT_EQ(resident == pieces.size(), plan.spine_is_resident);
  if (plan.spine_is_resident) {
    ASSERT_EQ(plan.buffer_bytes, 0u);
  } else {
    ASSERT_GE(plan.spine.ring_bytes, pieces.LargestRingBytes());
    ASSERT_EQ(plan.buffer_bytes, plan.spine.ring_bytes + pieces.WholeBytes());
    // Nothing lies idle but a piece, a slot, a position and the parts that do not divide.
    ASSERT_LE(plan.budget_bytes - plan.used_bytes(),
              pieces.WholeBytes() + pieces.LargestRingBytes() + 2 * kReadAlignment + 18'000'000 +
                  request.workspace_bytes(plan.positions + 1) - plan.workspace_bytes);
  }
}

// What the error says is enough; a little less is not.
uint64_t LeastBytes(const Checkpoint& checkpoint, const SpineSource& spine, PlanRequest request) {
  request.ram_bytes = 1;
  try {
    PlanMemory(checkpoint, spine, Machine(uint64_t{1} << 50), request);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    double number = 0;
    char unit = 0;
    const char* const least = std::strstr(e.what(), "at least --ram ");
    EXPECT_TRUE(least != nullptr &&
                std::sscanf(least, "at least --ram %lf%c", &number, &unit) == 2 &&
                (unit == 'G' || unit == 'M'))
        << e.what();
    return static_cast<uint64_t>(number * static_cast<double>(unit == 'G' ? kGiB : kMiB));
  }
  ADD_FAILURE() << "one byte was enough";
  return 0;
}

void CheckMonotone(const Checkpoint& checkpoint, const SpineSource& spine, PlanRequest request,
                   uint64_t most_bytes) {
  const uint64_t least = LeastBytes(checkpoint, spine, request);
  std::mt19937_64 random(5);
  std::vector<uint64_t> budgets = {least, most_bytes};
  for (int i = 0; i < 400; ++i) budgets.push_back(least + random() % (most_bytes - least));
  for (int i = 0; i < 100; ++i) budgets.push_back(least + static_cast<uint64_t>(i));
  std::sort(budgets.begin(), budgets.end());
  MemoryPlan last;
  last.positions = 0;
  for (uint64_t budget : budgets) {
    request.ram_bytes = budget;
    const MemoryPlan plan = PlanMemory(checkpoint, spine, Machine(uint64_t{1} << 50), request);
    CheckSums(plan, spine, request);
    ASSERT_EQ(plan.budget_bytes, budget);
    ASSERT_GE(plan.positions, last.positions) << budget;
    ASSERT_GE(plan.spine_bytes, last.spine_bytes) << budget;
    // The ring never has room for all that passes through it.
    if (!plan.spine_is_resident) {
      const SpinePieces pieces(spine, plan.spine.piece_bytes);
      uint64_t streamed = 0;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (!plan.spine.resident[i]) streamed += ReadBufferBytes(pieces[i].bytes);
      }
      ASSERT_LT(plan.buffer_bytes, streamed) << budget;
    }
    for (size_t i = 0; i < last.spine.resident.size(); ++i) {
      ASSERT_TRUE(plan.spine.resident[i] || !last.spine.resident[i]) << budget;
    }
    ASSERT_GE(plan.expert_slots, last.expert_slots) << budget;
    last = plan;
  }
  EXPECT_TRUE(last.spine_is_resident);
}

class MemoryPlanTest : public testing::Test {
 protected:
  const std::unique_ptr<Checkpoint> checkpoint_ =
      Checkpoint::Open(RealFileSystem(), DataPath("official/model"));
  const SpineSource spine_ = ReleasedSpine(*checkpoint_);
};

TEST_F(MemoryPlanTest, MoreMemoryIsNeverWorse) {
  CheckMonotone(*checkpoint_, spine_, Request(0, 20 * kMiB, 3 * kMiB, 9000), 120 * kMiB);
  CheckMonotone(*checkpoint_, spine_, Request(0, 100, 100, 333), 20 * kMiB);
}

TEST_F(MemoryPlanTest, TheLeastIsTheLeast) {
  PlanRequest request = Request(0, 5 * kMiB, kMiB, 9000);
  const uint64_t least = LeastBytes(*checkpoint_, spine_, request);
  request.ram_bytes = least;
  const MemoryPlan plan = PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
  // The message rounds up to a MiB; what is not used is less than that, and is not needed.
  const SpinePieces pieces(spine_, plan.spine.piece_bytes);
  const uint64_t exact = request.program_bytes + request.state_bytes + request.workspace_bytes(1) +
                         plan.tables_bytes + pieces.WholeBytes() + 3 * pieces.LargestRingBytes() +
                         static_cast<uint64_t>(checkpoint_->config().experts_per_token) *
                             ReadBufferBytes(checkpoint_->expert_bytes());
  EXPECT_LE(exact, least);
  EXPECT_LT(least - exact, kMiB);
  request.ram_bytes = exact;
  EXPECT_EQ(PlanMemory(*checkpoint_, spine_, Machine(kGiB), request).positions, 1);
  request.ram_bytes = exact - 1;
  EXPECT_THROW(PlanMemory(*checkpoint_, spine_, Machine(kGiB), request), Error);
}

TEST_F(MemoryPlanTest, SessionsSideBySideHaveTheirRoom) {
  PlanRequest request = Request(0, 5 * kMiB, kMiB, 9000);
  const uint64_t one = LeastBytes(*checkpoint_, spine_, request);
  request.min_positions = 200;
  request.snapshot_bytes = 7 * kMiB;
  const uint64_t least = LeastBytes(*checkpoint_, spine_, request);
  EXPECT_NEAR(static_cast<double>(least - one), 7.0 * kMiB + 199 * 9000, kMiB);
  request.ram_bytes = least;
  const MemoryPlan plan = PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
  EXPECT_GE(plan.positions, 200);
  EXPECT_EQ(plan.snapshot_bytes, 7 * kMiB);
  CheckSums(plan, spine_, request);
}

TEST_F(MemoryPlanTest, LeavesTheSystemAReserve) {
  const PlanRequest request = Request(0, kMiB, kMiB, 9000);
  const auto plan = [&](const MemoryLimits& limits) {
    return PlanMemory(*checkpoint_, spine_, limits, request);
  };
  // 18 % of 64 GiB is 12.4 GB.
  const MemoryPlan desktop = plan(Machine(64 * kGiB, 60 * kGiB));
  EXPECT_EQ(desktop.reserve_bytes, 64 * kGiB / 100 * 18);
  EXPECT_EQ(desktop.limited_by, "physical memory");
  // 10 GB would be all of it.
  EXPECT_EQ(plan(Machine(8 * kGiB, 8 * kGiB)).budget_bytes, 4 * kGiB);
  EXPECT_EQ(plan(Machine(32 * kGiB)).reserve_bytes, 10'000'000'000u);  // availability unknown
  // Others use nearly all: the plan takes what they leave, and not all of that.
  const MemoryPlan full = plan(Machine(64 * kGiB, 8 * kGiB));
  EXPECT_EQ(full.budget_bytes, 7 * kGiB);
  EXPECT_EQ(full.reserve_bytes, 57 * kGiB);
  EXPECT_EQ(full.limited_by, "physical memory, most of it in use by other programs");
  EXPECT_EQ(BudgetBytes(Machine(64 * kGiB, 8 * kGiB), 0), 7 * kGiB);
  EXPECT_EQ(BudgetBytes(Machine(64 * kGiB, 8 * kGiB), 9 * kGiB), 9 * kGiB);
  EXPECT_EQ(BudgetBytes(Machine(64 * kGiB, 8 * kGiB), 65 * kGiB), 64 * kGiB);
}

TEST_F(MemoryPlanTest, RamIsTakenAtItsWordUpToTheLimit) {
  PlanRequest request = Request(kGiB, kMiB, kMiB, 9000);
  const MemoryPlan given = PlanMemory(*checkpoint_, spine_, Machine(8 * kGiB, kGiB / 2), request);
  EXPECT_EQ(given.budget_bytes, kGiB);
  EXPECT_EQ(given.reserve_bytes, 0u);
  EXPECT_EQ(given.limited_by, "--ram");
  const MemoryLimits cgroup{8 * kGiB, 8 * kGiB, kGiB / 2, "cgroup /a"};
  const MemoryPlan limited = PlanMemory(*checkpoint_, spine_, cgroup, request);
  EXPECT_EQ(limited.budget_bytes, kGiB / 2);
  EXPECT_EQ(limited.limited_by, "cgroup /a");
}

TEST_F(MemoryPlanTest, WhatAGpuTakesOfRamIsSaid) {
  PlanRequest request = Request(0, kMiB, kMiB, 9000);
  const uint64_t without = LeastBytes(*checkpoint_, spine_, request);
  request.gpu_bytes = 9 * kMiB;
  EXPECT_NEAR(static_cast<double>(LeastBytes(*checkpoint_, spine_, request) - without), 9.0 * kMiB,
              kMiB);
  request.ram_bytes = 20 * kMiB;
  const MemoryPlan plan = PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
  EXPECT_EQ(plan.program_bytes, kMiB);
  EXPECT_EQ(plan.gpu_bytes, 9 * kMiB);
  EXPECT_LE(plan.used_bytes(), 20 * kMiB);
  request.ram_bytes = 1;
  try {
    PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
    FAIL() << "a byte is enough?";
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("GPU 9 MiB"));
    EXPECT_THAT(error.what(), testing::HasSubstr("--device cpu"));
  }
}

TEST_F(MemoryPlanTest, EverythingFitsWithoutARing) {
  const PlanRequest request = Request(kGiB, kMiB, kMiB, 9000);
  const MemoryPlan plan = PlanMemory(*checkpoint_, spine_, Machine(8 * kGiB), request);
  EXPECT_TRUE(plan.spine_is_resident);
  EXPECT_EQ(plan.buffer_bytes, 0u);
  EXPECT_EQ(plan.positions, 512);
  EXPECT_EQ(plan.expert_slots,
            checkpoint_->config().num_layers * checkpoint_->config().num_experts);
}

// What a GPU keeps needs no RAM.
TEST_F(MemoryPlanTest, WhatAGpuKeepsMakesRoomForTheRest) {
  PlanRequest request = Request(0, kMiB, kMiB, 1000);
  request.ram_bytes = LeastBytes(*checkpoint_, spine_, request) + kMiB;
  const MemoryPlan alone = PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
  EXPECT_FALSE(alone.spine_is_resident);
  EXPECT_TRUE(alone.spine.kept.empty());
  uint64_t before = 0;
  for (const uint64_t device_bytes : {kMiB / 16, kMiB / 2, kMiB, 4 * kMiB, kGiB}) {
    request.device_bytes = device_bytes;
    const MemoryPlan plan = PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
    const SpinePieces pieces(spine_, plan.spine.piece_bytes);
    ASSERT_LE(plan.used_bytes(), plan.budget_bytes);
    ASSERT_GE(plan.spine.ring_bytes, pieces.LargestRingBytes());
    ASSERT_LE(plan.device_spine_bytes, device_bytes);
    ASSERT_GE(plan.device_spine_bytes, before);
    before = plan.device_spine_bytes;
    ASSERT_EQ(plan.spine.kept.size(), pieces.size());
    bool all = true;
    uint64_t streamed_bytes = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!plan.spine.kept[i] && !plan.spine.resident[i]) streamed_bytes += pieces[i].bytes;
      ASSERT_FALSE(plan.spine.kept[i] && (plan.spine.resident[i] || pieces.IsWhole(i)));
      all = all && (plan.spine.kept[i] || plan.spine.resident[i]);
      ASSERT_TRUE(device_bytes < kGiB || plan.spine.kept[i] || pieces.IsWhole(i));
      ASSERT_TRUE(plan.spine.copied[i] ? pieces.IsWhole(i)
                                       : device_bytes < kGiB || !pieces.IsWhole(i));
    }
    ASSERT_EQ(all, plan.spine_is_resident);
    ASSERT_EQ(streamed_bytes, plan.streamed_spine_bytes);
    ASSERT_GE(plan.expert_slots, alone.expert_slots);
  }
  EXPECT_GT(before, kMiB);
}

// Pinning fewer layers gives the memory to experts, and never more than was pinned to the spine.
TEST_F(MemoryPlanTest, PinnedLayersBoundTheSpine) {
  const int64_t num_layers = checkpoint_->config().num_layers;
  const PlanRequest usual = Request(0, kMiB, kMiB, 1000);
  uint64_t ram = LeastBytes(*checkpoint_, spine_, usual);
  const auto plan = [&](int64_t pin) {
    PlanRequest request = usual;
    request.ram_bytes = ram;
    request.pin_layers = pin;
    return PlanMemory(*checkpoint_, spine_, Machine(kGiB), request);
  };
  while (!plan(-1).spine_is_resident) ram += kMiB / 16;
  const MemoryPlan free = plan(-1);
  int64_t slots = std::numeric_limits<int64_t>::max();
  uint64_t bytes = 0;
  for (int64_t pin = 0; pin < num_layers; ++pin) {
    const MemoryPlan pinned = plan(pin);
    EXPECT_LE(pinned.used_bytes(), ram);
    EXPECT_FALSE(pinned.spine_is_resident);
    EXPECT_LE(pinned.spine_bytes,
              free.spine_bytes / static_cast<uint64_t>(num_layers) * static_cast<uint64_t>(pin));
    EXPECT_GE(pinned.spine_bytes, bytes);
    EXPECT_LE(pinned.expert_slots, slots);
    bytes = pinned.spine_bytes;
    slots = pinned.expert_slots;
  }
  EXPECT_GT(bytes, free.spine_bytes / 2);
  EXPECT_GT(plan(0).expert_slots, free.expert_slots);
  EXPECT_EQ(plan(num_layers).spine_bytes, free.spine_bytes);
}

// The release, with the figures that the engine asks for: 93 layers, 113 GB of spine.
TEST(MemoryPlanOfTheRelease, FitsIntoTwoGibibytes) {
  SHARED_OR_SKIP(config_path, "fixtures/config.json");
  const std::string json = ReadWholeFile(RealFileSystem(), config_path, 1 << 20);
  const ModelConfig config = ModelConfig::Parse(json, config_path);
  const TempDir dir;
  try {
    WriteSkeleton(config, json, dir.path());
  } catch (const Error& e) {
    GTEST_SKIP() << "this file system has no sparse files of this size: " << e.what();
  }
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), dir.path());
  const SpineSource bf16 = ReleasedSpine(*checkpoint);
  // 69 KDA states and convolutions, 24 latent caches of 8,192 tokens in fp32.
  const uint64_t state = 69ull * (96 * 128 * 128 + 9 * 12288) * 4 + 24ull * 8192 * 576 * 4;
  PlanRequest request = Request(0, 150 * kMiB, state, 700'000);

  // The int8 form without writing 56 GB: sizes follow from the configuration.
  SpineSource int8;
  int8.format = WeightFormat::kInt8;
  for (int64_t layer = 0; layer <= config.num_layers; ++layer) {
    const Int8LayerLayout layout = LayoutOfInt8Layer(config, layer);
    StoredLayer& stored = int8.layers.emplace_back();
    stored.num_scales = layout.num_scales;
    for (const Int8LayerLayout::Part& part : layout.parts) {
      stored.matrices.push_back(
          {part.id, part.format, part.rows, part.cols, nullptr, part.offset, part.first_scale, {}});
    }
  }
  EXPECT_NEAR(static_cast<double>(bf16.TotalBytes()) / 1e9, 111, 3);
  EXPECT_NEAR(static_cast<double>(int8.TotalBytes()) / 1e9, 56.5, 1.5);
  const SpineSource* const sources[] = {&bf16, &int8};
  for (const SpineSource* spine : sources) {
    request.ram_bytes = 2 * kGiB;
    const MemoryPlan plan = PlanMemory(*checkpoint, *spine, Machine(2 * kGiB), request);
    CheckSums(plan, *spine, request);
    EXPECT_GE(plan.expert_slots, 16);
    const uint64_t least = LeastBytes(*checkpoint, *spine, request);
    std::printf(
        "%s: %.1f GB; least %.2f GiB; with 2 GiB: %d positions, ring %.0f MiB, %.0f MiB of the "
        "spine, "
        "%d slots, tables %.0f MB\n",
        spine == &bf16 ? "bf16" : "int8", static_cast<double>(spine->TotalBytes()) / 1e9,
        static_cast<double>(least) / static_cast<double>(kGiB), static_cast<int>(plan.positions),
        static_cast<double>(plan.spine.ring_bytes) / static_cast<double>(kMiB),
        static_cast<double>(plan.spine_bytes) / kMiB, static_cast<int>(plan.expert_slots),
        static_cast<double>(plan.tables_bytes) / 1e6);
    CheckMonotone(*checkpoint, *spine, request, 200 * kGiB);
  }
}

}  // namespace
}  // namespace deltafin
