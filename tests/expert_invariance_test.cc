// Slots, hints and warm starts decide when an expert is read, never what is computed: the logits
// are compared bit by bit.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "io/read_queue.h"
#include "model/model.h"
#include "shared_data.h"
#include "store/expert_heat.h"
#include "store/testing/hook_file_system.h"
#include "store/testing/simple_read_queue.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

const std::vector<TokenId> kTokens = {50, 700, 12, 12, 903, 4000, 77,  3, 1500, 222, 222, 31,
                                      8,  9,   10, 2,  77,  903,  700, 1, 45,   46,  47,  4100};

// Passes on hints that have nothing to do with the truth, whether they are wanted or not.
class MisleadingStore final : public ExpertStore {
 public:
  MisleadingStore(std::unique_ptr<ExpertStore> store, const ModelConfig& config, uint32_t seed)
      : store_(std::move(store)), config_(config), random_(seed) {}

  std::unique_ptr<ExpertBatch> Request(int64_t layer, std::span<const int32_t> ids) override {
    return store_->Request(layer, ids);
  }
  void Hint(int64_t layer, std::span<const int32_t> ids) override {
    const std::set<int32_t> truth(ids.begin(), ids.end());
    std::vector<int32_t> lies;
    for (int32_t id = 0; id < config_.num_experts; ++id) {
      if (!truth.contains(id) && random_() % 4 == 0) lies.push_back(id);
    }
    if (random_() % 3 == 0) {  // of another layer even
      do {
        layer = static_cast<int64_t>(random_() % static_cast<uint32_t>(config_.num_layers));
      } while (!config_.IsMoe(layer));
    }
    store_->Hint(layer, lies);
  }
  bool WantsHint(int64_t) const override { return true; }
  ExpertStoreCounters counters() const override { return store_->counters(); }
  std::vector<LayerExpertCounters> layer_counters() const override {
    return store_->layer_counters();
  }

 private:
  const std::unique_ptr<ExpertStore> store_;
  const ModelConfig& config_;
  std::mt19937 random_;
};

// Every matrix is on its way when it is asked for, and comes when there is nothing else to do.
class AwaitedSpine final : public SpineStore {
 public:
  explicit AwaitedSpine(SpineStore& spine) : spine_(spine) {}

  std::unique_ptr<SpineLease> Acquire(int64_t layer) override {
    return std::make_unique<Lease>(*this, spine_.Acquire(layer));
  }
  void ReadEmbeddings(std::span<const TokenId> tokens, float* out) override {
    spine_.ReadEmbeddings(tokens, out);
  }
  // How often something was done meanwhile.
  int64_t num_done(SpineMatrix id) const {
    const auto found = num_done_.find(id);
    return found == num_done_.end() ? 0 : found->second;
  }

 private:
  class Lease final : public SpineLease {
   public:
    Lease(AwaitedSpine& store, std::unique_ptr<SpineLease> lease)
        : store_(store), lease_(std::move(lease)) {}
    const float* Vector(SpineVector id) override { return lease_->Vector(id); }
    void ForEachPiece(SpineMatrix id, const Use& use,
                      const std::function<bool()>& meanwhile) override {
      while (meanwhile()) ++store_.num_done_[id];
      lease_->ForEachPiece(id, use, meanwhile);
    }
    bool IsKept(SpineMatrix id) const override { return lease_->IsKept(id); }
    Matrix Whole(SpineMatrix id) override { return lease_->Whole(id); }

   private:
    AwaitedSpine& store_;
    const std::unique_ptr<SpineLease> lease_;
  };

  SpineStore& spine_;
  std::map<SpineMatrix, int64_t> num_done_;
};

class ExpertInvarianceTest : public testing::Test {
 protected:
  ExpertInvarianceTest()
      : checkpoint_(Checkpoint::Open(fs_, NanoDir())),
        pool_(2),
        device_(MakeCpuDevice(pool_)),
        spine_queue_(MakeReadQueue({})) {
    SpineSource source = ReleasedSpine(*checkpoint_);
    const SpineStoreOptions all = AllResident(source);
    spine_ = MakeSpineStore(*checkpoint_, std::move(source), *spine_queue_, all);
  }

  // The logits after every token: a prompt of 9 in one pass, the others one by one.
  std::vector<float> Logits(ExpertStore& experts) { return Logits(*spine_, experts); }
  std::vector<float> Logits(SpineStore& spine, ExpertStore& experts) {
    const ModelConfig& config = checkpoint_->config();
    Model model(config, spine, experts, *device_);
    SequenceState state(config, *device_, CacheFormat::kF32);
    std::vector<float> all;
    const auto sink = [&](size_t, int64_t, std::span<const float> row) {
      all.insert(all.end(), row.begin(), row.end());
    };
    const std::span<const TokenId> tokens(kTokens);
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t count = begin == 0 ? 9 : 1;
      const deltafin::Run run{&state, tokens.subspan(begin, count), LogitsWanted::kAll};
      model.Forward({&run, 1}, sink, {});
      begin += count;
    }
    return all;
  }
  std::unique_ptr<ExpertStore> MakeStore(ReadQueue& queue, int64_t num_slots, Prefetch prefetch,
                                         const std::string& heat_path = "") {
    return MakeExpertStore(*checkpoint_, queue, {num_slots, prefetch, heat_path});
  }

  HookFileSystem fs_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ReadQueue> spine_queue_;
  std::unique_ptr<SpineStore> spine_;
};

TEST_F(ExpertInvarianceTest, SlotsAndHints) {
  SimpleReadQueue queue;
  const auto plenty = MakeStore(queue, 100000, Prefetch::kOff);
  const std::vector<float> want = Logits(*plenty);
  ASSERT_EQ(want.size(), kTokens.size() * checkpoint_->config().vocab_size);
  for (const int64_t num_slots : {1, 2, 6, 16, 40, 200}) {
    for (const Prefetch prefetch : {Prefetch::kOff, Prefetch::kAuto}) {
      const auto store = MakeStore(queue, num_slots, prefetch);
      EXPECT_EQ(Logits(*store), want) << num_slots << " slots";
      const ExpertStoreCounters counters = store->counters();
      EXPECT_EQ(counters.bytes_ahead > 0, prefetch == Prefetch::kAuto && num_slots >= 4);
    }
    MisleadingStore misleading(MakeStore(queue, num_slots, Prefetch::kAuto), checkpoint_->config(),
                               static_cast<uint32_t>(num_slots));
    EXPECT_EQ(Logits(misleading), want) << num_slots << " slots, wrong hints";
  }
}

// The queue of the program, which splits reads and promotes guesses that are under way.
TEST_F(ExpertInvarianceTest, TheProgramsQueue) {
  SimpleReadQueue simple;
  const auto plenty = MakeStore(simple, 100000, Prefetch::kOff);
  const std::vector<float> want = Logits(*plenty);
  for (const uint64_t split_bytes : {uint64_t{4} << 20, uint64_t{8192}}) {
    ReadQueueOptions options;
    options.depth = 3;
    options.split_bytes = split_bytes;
    const auto queue = MakeReadQueue(options);
    for (const int64_t num_slots : {2, 24, 300}) {
      const auto store = MakeStore(*queue, num_slots, Prefetch::kAuto);
      EXPECT_EQ(Logits(*store), want) << num_slots << " slots";
      MisleadingStore misleading(MakeStore(*queue, num_slots, Prefetch::kAuto),
                                 checkpoint_->config(), 1);
      EXPECT_EQ(Logits(misleading), want) << num_slots << " slots, wrong hints";
    }
  }
}

TEST_F(ExpertInvarianceTest, WarmStarts) {
  const TempDir dir;
  SimpleReadQueue queue;
  std::vector<float> want;
  for (const int64_t num_slots : {100000, 100000, 60, 16, 200}) {
    const auto store = MakeStore(queue, num_slots, Prefetch::kAuto, dir / "heat");
    const std::vector<float> got = Logits(*store);
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << num_slots << " slots";
  }
}

// While a shared matrix is waited for, experts that have come are computed: the disk has them
// before it. By then the router has picked, and the input of the experts has been projected.
TEST_F(ExpertInvarianceTest, ExpertsAreComputedWhileSharedMatricesAreAwaited) {
  SimpleReadQueue queue;
  const std::vector<float> want = Logits(*MakeStore(queue, 200, Prefetch::kOff));
  AwaitedSpine spine(*spine_);
  const auto store = MakeStore(queue, 2, Prefetch::kOff);  // so that not all are there at once
  EXPECT_EQ(Logits(spine, *store), want);
  EXPECT_GT(spine.num_done(SpineMatrix::kSharedGate), 0);
  EXPECT_EQ(spine.num_done(SpineMatrix::kRouter), 0);
  EXPECT_EQ(spine.num_done(SpineMatrix::kRoutedDown), 0);
}

// The hints of the model are about what it will really ask for.
TEST_F(ExpertInvarianceTest, HintsForetellMostPicks) {
  SimpleReadQueue queue;
  const auto store = MakeStore(queue, 48, Prefetch::kAuto);
  Logits(*store);
  const auto recall = [layers = store->layer_counters()](size_t first, size_t end) {
    uint64_t foretold = 0;
    uint64_t foretold_of = 0;
    for (size_t layer = first; layer < end; ++layer) {
      foretold += layers[layer].foretold;
      foretold_of += layers[layer].foretold_of;
    }
    EXPECT_GT(foretold_of, 0u);
    return static_cast<double>(foretold) / static_cast<double>(foretold_of);
  };
  // 84 % on a book (docs/experts.md); guesses at random would be right in 6 of 64 cases.
  EXPECT_GT(recall(2, store->layer_counters().size()), 0.5);
  EXPECT_GT(recall(1, 2), 0.5);  // after a dense layer
  EXPECT_GT(store->counters().ahead_hits + store->counters().ahead_late, 0u);
}

}  // namespace
}  // namespace deltafin
