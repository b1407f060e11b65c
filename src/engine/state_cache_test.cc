#include "engine/state_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class StateCacheTest : public testing::Test {
 protected:
  StateCacheTest() {
    config_.num_layers = 2;
    config_.is_mla = {false, true};
    config_.kda_heads = 2;
    config_.kda_head_dim = 8;
    config_.conv_kernel = 4;
    config_.kv_lora_rank = 10;
    config_.qk_rope_head_dim = 6;
    folder_ = (fs::path(testing::TempDir()) /
               ("deltafin_states_" + std::to_string(::getpid()) +
                std::string(testing::UnitTest::GetInstance()->current_test_info()->name())))
                  .string();
    fs::remove_all(folder_);
  }
  ~StateCacheTest() override { fs::remove_all(folder_); }

  // The tokens from 0 on, and a state that says so.
  SequenceState StateOf(int64_t tokens) {
    SequenceState state(config_, *device_, CacheFormat::kF32);
    state.Reserve(tokens);
    state.Advance(tokens);
    state.kda_state(0)[0] = static_cast<float>(tokens);
    return state;
  }
  static KeptText Text(int64_t tokens, bool logits = true) {
    KeptText text;
    text.tokens.resize(static_cast<size_t>(tokens));
    std::iota(text.tokens.begin(), text.tokens.end(), 0);
    if (logits) text.logits = {1, 2, 3};
    text.first_generated = tokens;
    return text;
  }
  StateCache::Id Keep(StateCache& cache, const KeptText& text) {
    return cache.Keep(text, StateOf(std::ssize(text.tokens)));
  }
  // Of a state for the text of so many tokens; 0: none.
  int64_t Restored(StateCache& cache, int64_t tokens) {
    SequenceState state(config_, *device_, CacheFormat::kF32);
    const KeptText wanted = Text(tokens);
    const auto text = cache.Restore({wanted.tokens}, 0, state);
    if (!text) return 0;
    EXPECT_EQ(state.num_tokens(), std::ssize(text->tokens));
    EXPECT_EQ(state.kda_state(0)[0], static_cast<float>(state.num_tokens()));
    EXPECT_TRUE(state.num_tokens() < tokens || !text->logits.empty());
    return state.num_tokens();
  }
  StateCache Cache(uint64_t ram, bool folder, uint64_t folder_bytes = 1 << 20, uint64_t model = 1) {
    return {
        {ram, folder ? folder_ : "", folder_bytes}, {{model, 2}, CacheFormat::kF32, "bf16"}, 1000};
  }
  size_t NumFiles() {
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      files += entry.path().extension() == ".session";
    }
    return files;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Device> device_ = MakeCpuDevice(pool_);
  ModelConfig config_;
  std::string folder_;
};

TEST_F(StateCacheTest, TheLongestBeginningIsOfUse) {
  StateCache cache = Cache(1 << 20, false);
  for (int64_t tokens : {10, 20, 30}) Keep(cache, Text(tokens));
  EXPECT_EQ(Restored(cache, 25), 20);
  EXPECT_EQ(Restored(cache, 30), 30);
  EXPECT_EQ(Restored(cache, 9), 0);
  SequenceState state = StateOf(1);
  const KeptText wanted = Text(25);
  EXPECT_FALSE(cache.Restore({wanted.tokens}, 20, state));
  EXPECT_EQ(state.num_tokens(), 1);
  EXPECT_EQ(cache.MostUseful({wanted.tokens}), 20);
}

TEST_F(StateCacheTest, WhatEndsWithThePromptNeedsLogits) {
  StateCache cache = Cache(1 << 20, false);
  Keep(cache, Text(10));
  Keep(cache, Text(20, false));
  EXPECT_EQ(Restored(cache, 20), 10);
  EXPECT_EQ(Restored(cache, 21), 20);
  Keep(cache, Text(20, true));  // now they are known
  EXPECT_EQ(Restored(cache, 20), 20);
}

// A state without logits is no state of the whole prompt, whoever wanted to add them.
TEST_F(StateCacheTest, LogitsWithoutRoomAreNotThere) {
  const uint64_t one = StateOf(20).SavedBytes();
  StateCache small = Cache(one, false);
  Keep(small, Text(20, false));
  Keep(small, Text(20, true));
  EXPECT_EQ(Restored(small, 20), 0);
  EXPECT_EQ(Restored(small, 21), 20);

  StateCache reserved = Cache(2 * one, false);
  Keep(reserved, Text(20, false));
  ASSERT_TRUE(reserved.ReserveRoom(one));
  Keep(reserved, Text(20, true));
  reserved.ReleaseRoom();
  EXPECT_EQ(Restored(reserved, 20), 0);
  EXPECT_EQ(Restored(reserved, 21), 20);
}

TEST_F(StateCacheTest, LogitsThatCannotBeWrittenAreNotThere) {
  StateCache cache = Cache(0, true);
  Keep(cache, Text(20, false));
  const fs::path blocked = [&] {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() == ".session") return entry.path().string() + ".tmp";
    }
    return std::string();
  }();
  fs::create_directory(blocked);
  Keep(cache, Text(20, true));
  EXPECT_EQ(cache.failures(), 1u);
  EXPECT_EQ(Restored(cache, 20), 0);
  EXPECT_EQ(Restored(cache, 21), 20);
  fs::remove(blocked);
  Keep(cache, Text(20, true));
  EXPECT_EQ(Restored(cache, 20), 20);
}

TEST_F(StateCacheTest, LogitsThatAreOnlyInTheFileComeFromThere) {
  StateCache cache = Cache(StateOf(20).SavedBytes(), true);
  Keep(cache, Text(20, false));
  Keep(cache, Text(20, true));
  EXPECT_EQ(Restored(cache, 20), 20);
}

TEST_F(StateCacheTest, RoomThatIsReservedAgainCountsOnce) {
  const uint64_t one = StateOf(28).SavedBytes() + 3 * sizeof(float);
  StateCache cache = Cache(3 * one, false);
  for (int64_t tokens : {27, 28}) Keep(cache, Text(tokens));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.ReserveRoom(one));
  EXPECT_EQ(Restored(cache, 27), 27);
  EXPECT_EQ(Restored(cache, 28), 28);
  EXPECT_TRUE(cache.ReserveRoom(2 * one));
  EXPECT_EQ(Restored(cache, 27), 0);
}

TEST_F(StateCacheTest, AnAnswerIsOfUseForTheSameQuestionOnly) {
  StateCache cache = Cache(1 << 20, false);
  KeptText answer = Text(20);
  answer.first_generated = 15;
  answer.answer_key = 7;
  Keep(cache, answer);
  const KeptText prompt = Text(15), longer = Text(16);
  EXPECT_EQ(cache.MostUseful({prompt.tokens, 7}), 20);
  EXPECT_EQ(cache.MostUseful({prompt.tokens, 8}), 0);
  EXPECT_EQ(cache.MostUseful({prompt.tokens, 0}), 0);
  EXPECT_EQ(cache.MostUseful({longer.tokens, 7}), 0);
}

TEST_F(StateCacheTest, TheLeastRecentlyUsedGoesFirst) {
  const uint64_t one = StateOf(30).SavedBytes() + 3 * sizeof(float);
  StateCache cache = Cache(3 * one, false);
  for (int64_t tokens : {27, 28, 29}) Keep(cache, Text(tokens));
  EXPECT_EQ(Restored(cache, 27), 27);
  const StateCache::Id last = Keep(cache, Text(30));
  EXPECT_LE(cache.ram_bytes(), 3 * one);
  EXPECT_EQ(Restored(cache, 28), 27);
  EXPECT_EQ(Restored(cache, 30), 30);
  cache.Drop(last);
  EXPECT_EQ(Restored(cache, 30), 29);
  EXPECT_EQ(Keep(cache, Text(900)), 0u);  // larger than all the room: nothing goes for it
  EXPECT_EQ(Restored(cache, 30), 29);
}

TEST_F(StateCacheTest, FilesAreFoundAgain) {
  for (uint64_t ram : {uint64_t{0}, uint64_t{1} << 20}) {
    {
      StateCache cache = Cache(ram, true);
      for (int64_t tokens : {10, 20}) Keep(cache, Text(tokens));
      EXPECT_THROW(Cache(ram, true), Error);  // one process at a time
    }
    StateCache cache = Cache(ram, true);
    EXPECT_EQ(Restored(cache, 25), 20);
    EXPECT_EQ(Restored(cache, 15), 10);
    EXPECT_EQ(NumFiles(), 2u);
  }
}

TEST_F(StateCacheTest, FilesOfAnotherModelAreOfNoUseAndCount) {
  {
    StateCache cache = Cache(0, true);
    Keep(cache, Text(10));
  }
  StateCache other = Cache(0, true, 1 << 20, 9);
  EXPECT_EQ(Restored(other, 25), 0);
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_GT(other.file_bytes(), 0u);
}

// Equal texts have files of equal names: the later model's takes the place of the other's.
TEST_F(StateCacheTest, AFileInPlaceOfAnotherModelsIsCountedAndRemovedOnce) {
  {
    StateCache cache = Cache(0, true);
    Keep(cache, Text(10));
  }
  const uint64_t one = Cache(0, true).file_bytes();
  StateCache other = Cache(0, true, 2 * one + one / 2, 9);
  Keep(other, Text(10));
  EXPECT_EQ(other.file_bytes(), one);
  EXPECT_GT(Keep(other, Text(11)), 0u);
  EXPECT_EQ(Restored(other, 10), 10);  // and not the oldest any more
  EXPECT_EQ(NumFiles(), 2u);
  EXPECT_EQ(other.failures(), 0u);
}

TEST_F(StateCacheTest, FilesKeepToTheirRoom) {
  uint64_t bytes = 0;
  {
    StateCache cache = Cache(0, true);
    for (int64_t tokens : {10, 11, 12}) Keep(cache, Text(tokens));
    bytes = cache.file_bytes();
  }
  // In the order of their lengths; clocks of file systems are coarse.
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() != ".session") continue;
    const auto length = std::ssize(PeekSession(entry.path().string()).tokens);
    fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(100 - length));
  }
  bytes += 500;  // for longer texts, not for one more
  StateCache cache = Cache(0, true, bytes);
  Keep(cache, Text(13));
  EXPECT_LE(cache.file_bytes(), bytes);
  EXPECT_EQ(NumFiles(), 3u);
  EXPECT_EQ(Restored(cache, 10), 0);
  EXPECT_EQ(Restored(cache, 13), 13);
}

TEST_F(StateCacheTest, DamageIsNoticedAndRemoved) {
  {
    StateCache cache = Cache(0, true);
    for (int64_t tokens : {10, 20, 30}) Keep(cache, Text(tokens));
  }
  std::ofstream(folder_ + "/state-0123.session") << "nonsense";
  std::ofstream(folder_ + "/state-0123.session.tmp") << "half written";
  std::ofstream(folder_ + "/mine.session") << "not ours";
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (fs::file_size(entry) < 1000) continue;
    if (PeekSession(entry.path().string()).tokens.size() != 30) continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-3, std::ios::end);
    file << 'x';
  }
  StateCache cache = Cache(0, true);
  EXPECT_EQ(cache.failures(), 1u);
  EXPECT_EQ(Restored(cache, 35), 20);  // the damaged one was tried first
  EXPECT_EQ(cache.failures(), 2u);
  EXPECT_EQ(NumFiles(), 3u);  // 10, 20 and mine
  EXPECT_FALSE(fs::exists(folder_ + "/state-0123.session.tmp"));
}

TEST_F(StateCacheTest, AFolderThatCannotBeWrittenCostsTimeOnly) {
  StateCache cache = Cache(1 << 20, true);
  fs::remove_all(folder_);
  Keep(cache, Text(10));
  EXPECT_EQ(cache.failures(), 1u);
  EXPECT_EQ(Restored(cache, 15), 10);  // from RAM
}

TEST_F(StateCacheTest, NothingIsKeptWithoutRoom) {
  StateCache cache = Cache(0, false);
  EXPECT_FALSE(cache.keeps_any());
  EXPECT_EQ(Keep(cache, Text(10)), 0u);
}

}  // namespace
}  // namespace deltafin
