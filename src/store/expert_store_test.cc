#include "store/expert_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "deltafin/error.h"
#include "shared_data.h"
#include "store/cache_simulation.h"
#include "store/testing/hook_file_system.h"
#include "store/testing/simple_read_queue.h"

namespace deltafin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ExpertStoreTest : public testing::Test {
 protected:
  ExpertStoreTest() : checkpoint_(Checkpoint::Open(fs_, NanoDir())) {}

  std::string Direct(int64_t layer, int64_t expert) const {
    const Extent span = checkpoint_->ExpertSpan(layer, expert);
    std::string bytes(span.bytes, '\0');
    RealFileSystem()
        .OpenForReading(checkpoint_->file(span.shard).path())
        ->ReadAt(span.offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
  }
  // w1.data is the first byte of the span.
  testing::AssertionResult IsExpert(const ExpertWeights& weights, int64_t layer, int64_t expert) {
    const std::string expected = Direct(layer, expert);
    if (std::memcmp(weights.w1.data, expected.data(), expected.size()) != 0) {
      return testing::AssertionFailure() << "layer " << layer << " expert " << expert;
    }
    return testing::AssertionSuccess();
  }
  // Uses and releases every expert of a batch, one at a time as they arrive.
  void Consume(ExpertStore& store, int64_t layer, const std::vector<int32_t>& ids) {
    const auto batch = store.Request(layer, ids);
    size_t count = 0;
    for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
      for (size_t i : ready) {
        ASSERT_LT(i, ids.size());
        EXPECT_TRUE(IsExpert(batch->weights(i), layer, ids[i]));
        batch->Release(i);
        ++count;
      }
    }
    EXPECT_EQ(count, ids.size());
  }

  std::unique_ptr<ExpertStore> MakeStore(int64_t num_slots) {
    return MakeExpertStore(*checkpoint_, queue_, {num_slots, Prefetch::kOff, ""});
  }

  HookFileSystem fs_;
  std::unique_ptr<Checkpoint> checkpoint_;
  SimpleReadQueue queue_;
};

TEST_F(ExpertStoreTest, ReturnsWhatIsInTheFiles) {
  for (const int64_t num_slots : {1, 2, 16, 1000000}) {
    const auto store = MakeStore(num_slots);
    for (const int64_t layer : {1, 3, 12}) Consume(*store, layer, {63, 0, 7, 10, 1, 30});
    const ExpertStoreCounters counters = store->counters();
    EXPECT_EQ(counters.requested, 18u);
    EXPECT_EQ(counters.hits, 0u);
    EXPECT_EQ(counters.bytes_read(), 18 * checkpoint_->expert_bytes());
  }
}

TEST_F(ExpertStoreTest, AllExpertsOfALayerThroughOneSlot) {
  const auto store = MakeStore(1);
  std::vector<int32_t> ids(64);
  std::iota(ids.begin(), ids.end(), 0);
  Consume(*store, 5, ids);
}

TEST_F(ExpertStoreTest, EmptyRequest) {
  const auto store = MakeStore(2);
  EXPECT_THAT(store->Request(1, {})->NextReady(), IsEmpty());
}

TEST_F(ExpertStoreTest, HitsComeFirstAndAreNotReadAgain) {
  const auto store = MakeStore(4);
  Consume(*store, 2, {11, 12});
  const uint64_t bytes_before = store->counters().bytes_read();

  std::atomic<bool> open = false;  // holds back all reads
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) { open.wait(false); });
  const std::vector<int32_t> ids = {13, 12, 14, 11};
  const auto batch = store->Request(2, ids);
  EXPECT_THAT(batch->NextReady(), ElementsAre(1, 3));
  open = true;
  open.notify_all();
  std::vector<size_t> rest;
  for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
    rest.insert(rest.end(), ready.begin(), ready.end());
  }
  EXPECT_THAT(rest, testing::UnorderedElementsAre(0, 2));
  EXPECT_THAT(batch->NextReady(), IsEmpty());
  const ExpertStoreCounters counters = store->counters();
  EXPECT_EQ(counters.requested, 6u);
  EXPECT_EQ(counters.hits, 2u);
  EXPECT_EQ(counters.bytes_read() - bytes_before, 2 * checkpoint_->expert_bytes());
}

// All reads of a request are submitted at once: they meet in the hook.
TEST_F(ExpertStoreTest, ReadsRunAtTheSameTime) {
  const auto store = MakeStore(4);
  std::atomic<int> in_flight = 0;
  fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte>) {
    ++in_flight;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (in_flight < 4 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  Consume(*store, 1, {1, 2, 3, 4});
  EXPECT_EQ(in_flight, 4);
}

TEST_F(ExpertStoreTest, FailedReadIsReportedAndTheStoreGoesOn) {
  for (const int64_t num_slots : {1, 3, 16}) {
    const auto store = MakeStore(num_slots);
    Consume(*store, 1, {40});
    const Extent bad = checkpoint_->ExpertSpan(1, 9);
    fs_.set_hook([&](const std::string& path, uint64_t offset, std::span<std::byte>) {
      if (offset == bad.offset) throw Error(ErrorCode::kIo, path + ": injected");
    });
    {
      const std::vector<int32_t> ids = {40, 3, 9, 4, 5};
      const auto batch = store->Request(1, ids);
      const auto consume = [&] {
        for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
          for (size_t i : ready) batch->Release(i);
        }
      };
      for (int again = 0; again < 2; ++again) {
        try {
          consume();
          ADD_FAILURE() << "no error";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::kIo);
          EXPECT_THAT(e.what(), AllOf(HasSubstr("layer 1 expert 9: "), HasSubstr("injected")));
        }
      }
    }
    fs_.set_hook(nullptr);
    Consume(*store, 1, {40, 3, 9, 4, 5});
  }
}

TEST_F(ExpertStoreTest, ExceptionsOfOtherTypesAreErrorsToo) {
  const auto store = MakeStore(2);
  const std::vector<int32_t> ids = {1};
  auto code_of = [&] {
    try {
      store->Request(1, ids)->NextReady();
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::kCancelled;
  };
  fs_.set_hook([](const std::string&, uint64_t, std::span<std::byte>) { throw std::bad_alloc(); });
  EXPECT_EQ(code_of(), ErrorCode::kOutOfMemory);
  fs_.set_hook(
      [](const std::string&, uint64_t, std::span<std::byte>) { throw std::logic_error("odd"); });
  EXPECT_EQ(code_of(), ErrorCode::kIo);
}

TEST_F(ExpertStoreTest, ScaleByte255IsCorrupt) {
  const auto store = MakeStore(4);
  const ModelConfig& c = checkpoint_->config();
  const std::string direct = Direct(6, 21);
  const std::byte* base = std::as_bytes(std::span(direct.data(), direct.size())).data();
  const ExpertWeights view = checkpoint_->ViewExpert(base);
  struct Case {
    const char* tensor;
    const Matrix& matrix;
    int64_t row, block;
  };
  const Case cases[] = {
      {"w1.weight_scale", view.w1, 0, 0},
      {"w1.weight_scale", view.w1, c.moe_intermediate_size - 1, c.latent_size / 32 - 1},
      {"w2.weight_scale", view.w2, 5, c.moe_intermediate_size / 32 - 1},
      {"w3.weight_scale", view.w3, 77, 1},
      {"w3.weight_scale", view.w3, c.moe_intermediate_size - 1, c.latent_size / 32 - 1},
  };
  for (const Case& bad : cases) {
    const size_t at = static_cast<size_t>(bad.matrix.scales - base +
                                          bad.row * (bad.matrix.cols / 32) + bad.block);
    fs_.set_hook([&](const std::string&, uint64_t, std::span<std::byte> bytes) {
      bytes[at] = std::byte{255};
    });
    const std::vector<int32_t> ids = {21};
    for (int again = 0; again < 2; ++again) {  // a corrupt expert is not kept
      try {
        store->Request(6, ids)->NextReady();
        ADD_FAILURE() << bad.tensor;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
        EXPECT_THAT(e.what(),
                    AllOf(HasSubstr("model-00007-of-000014.safetensors: layer 6 expert 21: "),
                          HasSubstr(bad.tensor),
                          HasSubstr("row " + std::to_string(bad.row) + ", block " +
                                    std::to_string(bad.block))));
      }
    }
  }
  fs_.set_hook(nullptr);
  Consume(*store, 6, {21});
  EXPECT_EQ(store->counters().hits, 0u);
}

// 255 among the packed codes is two weights of -6.
TEST_F(ExpertStoreTest, PackedByte255IsFine) {
  const auto store = MakeStore(1);
  fs_.set_hook(
      [](const std::string&, uint64_t, std::span<std::byte> bytes) { bytes[0] = std::byte{255}; });
  const std::vector<int32_t> ids = {0};
  EXPECT_THAT(store->Request(1, ids)->NextReady(), ElementsAre(0));
}

TEST_F(ExpertStoreTest, ABatchMayEndWithReadsInFlight) {
  fs_.set_hook([](const std::string&, uint64_t, std::span<std::byte>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  for (const int64_t num_slots : {1, 3, 16}) {
    const auto store = MakeStore(num_slots);
    const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int round = 0; round < 5; ++round) {
      const auto batch = store->Request(1 + round, ids);
      if (round % 2 == 0) batch->NextReady();
    }
    Consume(*store, 1, ids);
  }
}

TEST_F(ExpertStoreTest, TheStoreMayEndBeforeItsBatch) {
  fs_.set_hook([](const std::string&, uint64_t, std::span<std::byte>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  for (const int64_t num_slots : {1, 16}) {
    auto store = MakeStore(num_slots);
    const std::vector<int32_t> ids = {0, 1, 2, 3, 4};
    const auto batch = store->Request(1, ids);
    store.reset();
    try {
      batch->NextReady();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCancelled);
    }
  }
}

using ExpertStoreDeathTest = ExpertStoreTest;

// Instead of waiting for ever.
TEST_F(ExpertStoreDeathTest, NeedingMoreSlotsThanThereAreIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hold_all = [&] {
    const auto store = MakeStore(1);
    const std::vector<int32_t> ids = {0, 1};
    const auto batch = store->Request(1, ids);
    batch->NextReady();
    batch->NextReady();
  };
  EXPECT_DEATH(hold_all(), "internal error");
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  size_t Below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }
  // Skewed, so that there are hits.
  std::vector<int32_t> Ids(size_t count) {
    std::vector<int32_t> ids;
    while (ids.size() < count) {
      const int32_t id = static_cast<int32_t>(Below(1 + Below(64)));
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }

 private:
  std::mt19937 engine_;
};

// Against the policy by itself, whose decisions eviction_policy_test.cc judges. Batches fit the
// slots and end all at once.
TEST_F(ExpertStoreTest, CountersMatchTheSimulation) {
  const ModelConfig& config = checkpoint_->config();
  const ExpertShape shape{config.num_layers, config.num_experts};
  for (const size_t num_slots : {1, 2, 16, 50}) {
    Random random(static_cast<uint32_t>(num_slots));
    const auto store = MakeStore(static_cast<int64_t>(num_slots));
    ExpertHeat heat(shape);
    const auto policy = MakeNextUsePolicy(heat);
    CacheSimulation simulation(shape, static_cast<int64_t>(num_slots), *policy);
    uint64_t requested = 0;
    for (int step = 0; step < 200; ++step) {
      const int64_t layer = 1 + static_cast<int64_t>(random.Below(3));
      const std::vector<int32_t> ids = random.Ids(1 + random.Below(std::min<size_t>(num_slots, 8)));
      const auto batch = store->Request(layer, ids);
      for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
        for (size_t i : ready) ASSERT_TRUE(IsExpert(batch->weights(i), layer, ids[i]));
      }
      simulation.Pass(layer, ids);
      requested += ids.size();
      const ExpertStoreCounters counters = store->counters();
      ASSERT_EQ(counters.requested, requested) << step;
      ASSERT_EQ(counters.hits, simulation.num_hits()) << step;
      ASSERT_EQ(counters.bytes_demand, (requested - counters.hits) * checkpoint_->expert_bytes());
      ASSERT_EQ(counters.bytes_read(), counters.bytes_demand);
    }
    EXPECT_GT(simulation.num_hits(), 0u);
  }
}

// Random requests of any size, random faults and delays, batches left early. Every expert handed
// out must be right while it is held, and every fault must be reported.
TEST_F(ExpertStoreTest, RandomRequestsWithFaults) {
  for (const int64_t num_slots : {1, 2, 5, 16}) {
    Random random(static_cast<uint32_t>(100 + num_slots));
    const auto store = MakeStore(num_slots);
    std::mutex mu;
    Random fault_random(7);
    std::atomic<int> faults = 0;
    fs_.set_hook([&](const std::string& path, uint64_t, std::span<std::byte> bytes) {
      size_t dice;
      {
        std::lock_guard lock(mu);
        dice = fault_random.Below(100);
      }
      if (dice < 3) {
        ++faults;
        throw Error(ErrorCode::kIo, path + ": injected");
      }
      if (dice < 5) {
        ++faults;
        bytes.back() = std::byte{255};  // the last scale of w3
      }
      if (dice < 30) std::this_thread::sleep_for(std::chrono::microseconds(10 * dice));
    });
    int reported = 0;
    int completed = 0;
    for (int step = 0; step < 150; ++step) {
      const int64_t layer = 1 + static_cast<int64_t>(random.Below(3));
      const std::vector<int32_t> ids = random.Ids(random.Below(24));
      const bool leaves_early = random.Below(8) == 0;
      const int faults_before = faults;
      const auto batch = store->Request(layer, ids);
      std::vector<size_t> held;
      size_t count = 0;
      try {
        for (std::vector<size_t> ready; !(ready = batch->NextReady()).empty();) {
          count += ready.size();
          held.insert(held.end(), ready.begin(), ready.end());
          for (size_t i : held) ASSERT_TRUE(IsExpert(batch->weights(i), layer, ids[i]));
          if (leaves_early) break;
          const size_t keep = num_slots > 1 ? random.Below(static_cast<size_t>(num_slots)) : 0;
          while (held.size() > keep) {
            const size_t at = random.Below(held.size());
            batch->Release(held[at]);
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
          }
        }
        if (leaves_early) continue;
        ASSERT_EQ(count, ids.size());
        ASSERT_EQ(faults, faults_before);
        ++completed;
      } catch (const Error& e) {
        ASSERT_TRUE(e.code() == ErrorCode::kIo || e.code() == ErrorCode::kCorrupt) << e.what();
        ASSERT_GT(faults, faults_before);
        ++reported;
      }
    }
    EXPECT_GT(reported, 0);
    EXPECT_GT(completed, 0);
    fs_.set_hook(nullptr);
    Consume(*store, 1, random.Ids(40));
  }
}

}  // namespace
}  // namespace deltafin
