// Reading experts ahead, on hints and at the start: what is read when, and that nothing but time
// depends on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "deltafin/error.h"
#include "shared_data.h"
#include "store/expert_heat.h"
#include "store/expert_store.h"
#include "store/testing/hook_file_system.h"
#include "store/testing/simple_read_queue.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Ids = std::vector<int32_t>;

class ExpertPrefetchTest : public testing::Test {
 protected:
  ExpertPrefetchTest() : checkpoint_(Checkpoint::Open(fs_, NanoDir())) {}

  std::unique_ptr<ExpertStore> MakeStore(int64_t num_slots, Prefetch prefetch = Prefetch::kAuto,
                                         const std::string& heat_path = "") {
    return MakeExpertStore(*checkpoint_, queue_, {num_slots, prefetch, heat_path});
  }
  // Whether the batch hands out all of `ids`, with the bytes of the file.
  testing::AssertionResult Consume(ExpertStore& store, int64_t layer, const Ids& ids) {
    const auto batch = store.Request(layer, ids);
    size_t count = 0;
    for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
      for (size_t i : ready) {
        const Extent span = checkpoint_->ExpertSpan(layer, ids[i]);
        std::vector<std::byte> want(span.bytes);
        RealFileSystem()
            .OpenForReading(checkpoint_->file(span.shard).path())
            ->ReadAt(span.offset, want);
        if (std::memcmp(batch->weights(i).w1.data, want.data(), want.size()) != 0) {
          return testing::AssertionFailure() << "layer " << layer << " expert " << ids[i];
        }
        batch->Release(i);
        ++count;
      }
    }
    if (count != ids.size()) return testing::AssertionFailure() << count << " experts";
    return testing::AssertionSuccess();
  }
  // Waits for what needs no lock of the test.
  static void Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
  uint64_t expert_bytes() const { return checkpoint_->expert_bytes(); }

  HookFileSystem fs_;
  std::unique_ptr<Checkpoint> checkpoint_;
  SimpleReadQueue queue_;
};

TEST_F(ExpertPrefetchTest, ARightHintIsAHit) {
  const auto store = MakeStore(64);
  store->Hint(3, Ids{5, 9, 20});
  Await([&] { return store->counters().bytes_ahead == 3 * expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 3, {9, 5, 40, 20}));
  const ExpertStoreCounters counters = store->counters();
  EXPECT_EQ(counters.requested, 4u);
  EXPECT_EQ(counters.hits, 3u);
  EXPECT_EQ(counters.ahead_hits, 3u);
  EXPECT_EQ(counters.bytes_demand, expert_bytes());
  EXPECT_EQ(counters.bytes_wasted, 0u);
  const LayerExpertCounters layer = store->layer_counters()[3];
  EXPECT_EQ(layer.foretold, 3u);
  EXPECT_EQ(layer.foretold_of, 4u);
  // The second use of the same expert is an ordinary hit.
  EXPECT_TRUE(Consume(*store, 3, {9}));
  EXPECT_EQ(store->counters().ahead_hits, 3u);
}

TEST_F(ExpertPrefetchTest, WhereNothingIsMissingNoHintIsWanted) {
  const auto store = MakeStore(1000);
  Ids ids(static_cast<size_t>(checkpoint_->config().num_experts) - 1);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_TRUE(Consume(*store, 4, ids));
  EXPECT_TRUE(store->WantsHint(4));
  EXPECT_TRUE(Consume(*store, 4, {static_cast<int32_t>(ids.size())}));
  EXPECT_FALSE(store->WantsHint(4));
  EXPECT_TRUE(store->WantsHint(5));
}

TEST_F(ExpertPrefetchTest, WhatDidNotComeOrGaveWayIsMissing) {
  const auto num_experts = static_cast<size_t>(checkpoint_->config().num_experts);
  const auto store = MakeStore(static_cast<int64_t>(num_experts) + 4);
  Ids ids(num_experts);
  std::iota(ids.begin(), ids.end(), 0);
  std::atomic<int> fail = 1;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) {
    if (fail.exchange(0) == 1) throw Error(ErrorCode::kIo, "once");
  });
  EXPECT_THROW((void)Consume(*store, 4, ids), Error);
  EXPECT_TRUE(store->WantsHint(4));
  EXPECT_TRUE(Consume(*store, 4, ids));
  EXPECT_FALSE(store->WantsHint(4));
  EXPECT_TRUE(Consume(*store, 5, {1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(store->WantsHint(4));
}

TEST_F(ExpertPrefetchTest, AHintedReadThatWaitsIsPromoted) {
  const auto store = MakeStore(64);
  queue_.set_closed(true);
  store->Hint(3, Ids{5, 9});
  EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), 2u);
  const Ids ids = {9, 30};
  const auto batch = store->Request(3, ids);
  EXPECT_EQ(queue_.num_promoted(), 1);
  EXPECT_EQ(queue_.num_waiting(ReadPriority::kDemand), 2u);
  EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), 0u);  // the wrong one was taken back
  queue_.set_closed(false);
  size_t count = 0;
  for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) count += ready.size();
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(store->counters().ahead_late, 1u);
  EXPECT_EQ(store->counters().hits, 0u);
  EXPECT_EQ(store->counters().bytes_read(), 2 * expert_bytes());
}

TEST_F(ExpertPrefetchTest, WhatWasReadInVainGoesFirst) {
  const auto store = MakeStore(8);
  const Ids kept = {1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(Consume(*store, 2, kept));
  store->Hint(3, Ids{50, 51});
  Await([&] { return store->counters().bytes_ahead == 2 * expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 3, {10, 11}));
  EXPECT_EQ(store->counters().bytes_wasted, 2 * expert_bytes());
  EXPECT_TRUE(Consume(*store, 2, kept));
  EXPECT_EQ(store->counters().hits, kept.size());
}

// It was guessed too early, but it was not read in vain.
TEST_F(ExpertPrefetchTest, AWrongGuessMayBeUsedLater) {
  const auto store = MakeStore(64);
  store->Hint(3, Ids{50});
  Await([&] { return store->counters().bytes_ahead == expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 3, {10}));
  EXPECT_TRUE(Consume(*store, 3, {50}));
  EXPECT_EQ(store->counters().ahead_hits, 1u);
  EXPECT_EQ(store->counters().bytes_demand, expert_bytes());
}

TEST_F(ExpertPrefetchTest, HintsAreBounded) {
  Ids all(64);
  for (int32_t i = 0; i < 64; ++i) all[static_cast<size_t>(i)] = i;
  queue_.set_closed(true);
  // A quarter of the slots, at most two tokens' picks (6 each).
  for (const auto& [num_slots, want] : {std::pair(3, 0u), {4, 1u}, {20, 5u}, {1000, 12u}}) {
    const auto store = MakeStore(num_slots);
    EXPECT_EQ(store->WantsHint(4), want > 0);
    store->Hint(4, all);
    EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), want);
    store->Hint(5, all);  // takes the other's place
    EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), want);
  }
  EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), 0u);  // the stores took theirs along
  const auto off = MakeStore(1000, Prefetch::kOff);
  EXPECT_FALSE(off->WantsHint(4));
  off->Hint(4, all);
  EXPECT_EQ(queue_.num_waiting(ReadPriority::kAhead), 0u);
  queue_.set_closed(false);
}

TEST_F(ExpertPrefetchTest, WithoutIdsTheLastPicksAreTheGuess) {
  const auto store = MakeStore(64);
  store->Hint(2, {});  // nothing is known yet
  EXPECT_TRUE(Consume(*store, 2, {7, 8}));
  std::vector<int32_t> others(60);
  for (int32_t i = 0; i < 60; ++i) others[static_cast<size_t>(i)] = i;
  EXPECT_TRUE(Consume(*store, 1, others));
  EXPECT_TRUE(Consume(*store, 4, others));  // by now layer 2's are gone
  store->Hint(2, {});
  Await([&] { return store->counters().bytes_ahead == 2 * expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 2, {8, 7}));
  EXPECT_EQ(store->counters().ahead_hits, 2u);
}

// A guess need not have been read at all.
TEST_F(ExpertPrefetchTest, AFailedReadOfAGuessFailsNothing) {
  const auto store = MakeStore(64);
  const Extent bad = checkpoint_->ExpertSpan(3, 9);
  std::atomic<int> failed = 0;
  fs_.set_hook([&](const std::string& path, uint64_t offset, std::span<std::byte>) {
    if (offset != bad.offset) return;
    ++failed;
    throw Error(ErrorCode::kIo, path + ": injected");
  });
  store->Hint(3, Ids{9, 10});
  Await([&] { return failed == 1 && store->counters().bytes_ahead == expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 3, {10, 11}));
  try {
    Consume(*store, 3, {9, 12});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("layer 3 expert 9: "));
  }
  fs_.set_hook(nullptr);
  EXPECT_TRUE(Consume(*store, 3, {9, 12}));
}

// Slots that a hint holds are given back when a request needs them.
TEST_F(ExpertPrefetchTest, ARequestOfAnotherLayerTakesTheSlots) {
  for (const bool arrived : {false, true}) {
    const auto store = MakeStore(4);
    queue_.set_closed(!arrived);
    store->Hint(3, Ids{50});
    if (arrived) {
      Await([&] { return store->counters().bytes_ahead == expert_bytes(); });
    }
    const Ids ids = {1, 2, 3, 4};
    const auto batch = store->Request(2, ids);  // all four at once
    queue_.set_closed(false);
    size_t count = 0;
    for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) count += ready.size();
    EXPECT_EQ(count, 4u);
  }
}

TEST_F(ExpertPrefetchTest, LayersWhereHintsDoNotPayRestAndTryAgain) {
  const auto store = MakeStore(24);
  // Reads of guesses hang until the turn of the guess is over, however late they begin.
  std::map<uint64_t, std::atomic<int>> turn_of;  // by offset
  for (int64_t expert = 0; expert < 60; ++expert) {
    turn_of[checkpoint_->ExpertSpan(3, expert).offset] = 0;
  }
  int turn = 0;
  std::atomic<int> turns_over = 0;
  fs_.set_hook([&](const std::string&, uint64_t offset, std::span<std::byte>) {
    const auto found = turn_of.find(offset);
    if (found == turn_of.end()) return;
    const int mine = found->second;
    for (int over = turns_over; over < mine; over = turns_over) turns_over.wait(over);
  });
  // Returns whether a hint was wanted.
  auto pass = [&](bool right) {
    const int32_t first = (turn * 3) % 60;
    const Ids guess = {first, first + 1, first + 2};
    const bool wants = store->WantsHint(3);
    ++turn;
    for (int32_t expert : guess) turn_of.at(checkpoint_->ExpertSpan(3, expert).offset) = turn;
    if (right) turns_over = turn;
    store->Hint(3, guess);
    // They have started, so they cannot be taken back, and are in the way.
    Await([&] { return queue_.num_waiting(ReadPriority::kAhead) == 0; });
    EXPECT_TRUE(Consume(*store, 3, right ? guess : Ids{60, 61, 62, 63}));
    turns_over = turn;
    turns_over.notify_all();
    return wants;
  };
  while (turn < 50 && pass(false)) {
  }
  EXPECT_EQ(turn, 9);  // 8 outcomes, and then it is enough
  EXPECT_FALSE(store->layer_counters()[3].hints_on);
  EXPECT_TRUE(store->layer_counters()[2].hints_on);
  for (int i = 0; i < 63; ++i) EXPECT_FALSE(pass(false));
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(pass(true)) << i;
}

// Random hints, right, wrong and half right, random faults, delays and batches that end early:
// whatever is handed out is right, and a request fails only for a fault.
TEST_F(ExpertPrefetchTest, RandomHintsChangeNoResult) {
  for (const int64_t num_slots : {1, 2, 5, 16, 64, 300}) {
    std::mt19937 random(static_cast<uint32_t>(num_slots));
    auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    auto some_ids = [&](int count) {
      Ids ids;
      while (static_cast<int>(ids.size()) < count) {
        const int32_t id = below(1 + below(64));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      return ids;
    };
    std::atomic<uint32_t> dice = 1;
    std::atomic<int> faults = 0;
    fs_.set_hook([&](const std::string& path, uint64_t, std::span<std::byte>) {
      const uint32_t roll = (dice.fetch_add(1) * 2654435761u) >> 24;
      if (roll < 4) {
        ++faults;
        throw Error(ErrorCode::kIo, path + ": injected");
      }
      if (roll < 60) std::this_thread::sleep_for(std::chrono::microseconds(roll * 5));
    });
    auto store = MakeStore(num_slots);
    int completed = 0;
    for (int step = 0; step < 100; ++step) {
      const int64_t layer = 1 + step % 3;
      const Ids ids = some_ids(below(10));
      Ids hint = below(3) == 0 ? some_ids(below(8)) : ids;
      std::shuffle(hint.begin(), hint.end(), random);
      if (below(4) == 0) hint.resize(hint.size() / 2);
      if (below(5) != 0) store->Hint(below(8) == 0 ? 5 : layer, hint);
      if (below(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(below(500)));
      if (below(10) == 0) {
        const auto batch = store->Request(layer, ids);  // ends with its reads under way
        continue;
      }
      try {
        ASSERT_TRUE(Consume(*store, layer, ids));
        ++completed;
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::kIo);
        ASSERT_GT(faults, 0);
      }
      if (step == 60) store = MakeStore(num_slots);
    }
    EXPECT_GT(completed, 10);
    store.reset();
    fs_.set_hook(nullptr);
  }
}

// ---- heat ----

TEST_F(ExpertPrefetchTest, HeatIsKeptAndWarmsTheNextStore) {
  const TempDir dir;
  const std::string path = dir / ".deltafin/heat";
  {
    const auto store = MakeStore(64, Prefetch::kOff, path);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Consume(*store, 3, {5, 9}));
    EXPECT_TRUE(Consume(*store, 3, {7}));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto store = MakeStore(64, Prefetch::kOff, path);
  Await([&] { return store->counters().bytes_warm == 3 * expert_bytes(); });
  EXPECT_TRUE(Consume(*store, 3, {5, 7, 9}));
  EXPECT_EQ(store->counters().hits, 3u);
  EXPECT_EQ(store->counters().ahead_hits, 0u);
  EXPECT_EQ(store->counters().bytes_demand, 0u);
}

TEST_F(ExpertPrefetchTest, WarmingLeavesSlotsForWhatIsNeeded) {
  const TempDir dir;
  ExpertHeat heat({checkpoint_->config().num_layers, checkpoint_->config().num_experts});
  Ids all(64);
  for (int32_t i = 0; i < 64; ++i) all[static_cast<size_t>(i)] = i;
  heat.OnPass(3, all);
  ASSERT_TRUE(SaveHeat(dir / "heat", heat.Serialize()));
  // 6 slots for one request and 10 for a hint stay free.
  const auto store = MakeStore(40, Prefetch::kAuto, dir / "heat");
  Await([&] { return store->counters().bytes_warm == 24 * expert_bytes(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(store->counters().bytes_warm, 24 * expert_bytes());
  EXPECT_TRUE(Consume(*store, 3, all));
}

TEST_F(ExpertPrefetchTest, AStoreMayEndWhileItWarms) {
  const TempDir dir;
  ExpertHeat heat({checkpoint_->config().num_layers, checkpoint_->config().num_experts});
  Ids all(64);
  for (int32_t i = 0; i < 64; ++i) all[static_cast<size_t>(i)] = i;
  for (int64_t layer = 1; layer < 13; ++layer) heat.OnPass(layer, all);
  ASSERT_TRUE(SaveHeat(dir / "heat", heat.Serialize()));
  fs_.set_hook([](const std::string&, uint64_t, std::span<std::byte>) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  });
  for (int round = 0; round < 5; ++round) {
    const auto store = MakeStore(700, Prefetch::kAuto, dir / "heat");
    EXPECT_TRUE(Consume(*store, 1 + round, {1, 2, 3}));  // goes ahead of the warming
  }
  queue_.set_closed(true);
  { const auto store = MakeStore(700, Prefetch::kAuto, dir / "heat"); }
  queue_.set_closed(false);
}

}  // namespace
}  // namespace deltafin
