#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts what this program allocates, for DoesNotAllocate. Not inline: the compiler would see
// free() of what came from new, and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace deltafin {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnceInAlignedChunks) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        std::atomic<int> misaligned{0};
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
          if (begin % grain != 0 || begin >= end || (end != count && end % grain != 0))
            ++misaligned;
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(misaligned, 0);
        for (const auto& hit : hits) ASSERT_EQ(hit, 1) << count << " by " << grain;
      }
    }
  }
}

// Neighbours go together, so that a kernel seldom begins anew; the last pieces are the shortest, so
// that no thread waits long for another.
TEST(ThreadPoolTest, ClaimsMuchAtFirstAndLittleInTheEnd) {
  ThreadPool pool(1);
  std::vector<int64_t> lengths;
  pool.ParallelFor(640, 10, [&](int64_t begin, int64_t end) { lengths.push_back(end - begin); });
  EXPECT_EQ(lengths, (std::vector<int64_t>{320, 160, 80, 40, 20, 10, 10}));
}

TEST(ThreadPoolTest, RunsInlineWhenOneChunkIsEnough) {
  ThreadPool pool(4);
  std::thread::id who;
  pool.ParallelFor(8, 8, [&](int64_t, int64_t) { who = std::this_thread::get_id(); });
  EXPECT_EQ(who, std::this_thread::get_id());
}

TEST(ThreadPoolTest, ManyShortLoopsSeeEachOthersResults) {
  // Plain memory written by one loop and read by the next on other threads: ThreadSanitizer and the
  // sum both notice a loop that ended too early or a worker that ran a chunk of an old loop.
  ThreadPool pool(4);
  std::vector<int64_t> values(37, 0);
  constexpr int kLoops = 20000;
  for (int loop = 0; loop < kLoops; ++loop) {
    const int64_t count = 1 + loop % 37;
    pool.ParallelFor(count, 1 + loop % 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(count - 1 - i)] += 1;
    });
  }
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  int64_t expected = 0;
  for (int loop = 0; loop < kLoops; ++loop) expected += 1 + loop % 37;
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPoolTest, WorkersTakePart) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  // Each chunk waits until all three threads hold one: ends only if the workers really come.
  pool.ParallelFor(3, 1, [&](int64_t, int64_t) {
    ++inside;
    while (inside < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 3);
}

TEST(ThreadPoolTest, WakesWorkersThatWentToSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> inside{0};
    pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    });
  }
}

constexpr std::chrono::seconds kPatience{20};

// Waits until `done` or for 20 seconds; whether it was done.
template <class Done>
bool Eventually(Done done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

bool AllAsleep(const ThreadPool& pool) {
  return Eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return pool.NumAwake() == 0;
  });
}

TEST(ThreadPoolTest, KnowsHowManyWorkersAreAwake) {
  EXPECT_EQ(ThreadPool(1).NumAwake(), 0);  // it has none
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(AllAsleep(pool));
    std::atomic<int> inside{0};
    std::atomic<int> awake{0};
    std::atomic<int> looked{0};
    pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
      awake += pool.NumAwake();
      ++looked;
      while (looked < 2) std::this_thread::yield();  // who leaves may be asleep at once
    });
    EXPECT_EQ(awake, 2);
  }
}

TEST(ThreadPoolTest, SleepersAreWokenForLongPiecesOnly) {
  ThreadPool pool(4);
  ASSERT_TRUE(AllAsleep(pool));
  EXPECT_EQ(pool.Grain(0, 16, 1.0), 16);
  EXPECT_EQ(pool.Grain(1000, 16, 1.0), 1008);         // 1 us is one piece
  EXPECT_EQ(pool.Grain(50, 1, 400.0), 50);            // 20 us are not worth waking somebody ...
  EXPECT_EQ(pool.Grain(1000, 16, 400.0), 80);         // ... 400 us are, in pieces of 30
  EXPECT_EQ(pool.Grain(1000000, 16, 400.0), 7824);    // 32 pieces a thread
  EXPECT_EQ(pool.Grain(10, 1, 1e6), 1);               // an item is a piece
  EXPECT_EQ(ThreadPool(1).Grain(100, 1, 10.0), 100);  // nobody to share with
}

TEST(ThreadPoolTest, WorkersAreWokenForManyShortLoops) {
  ThreadPool pool(3);
  ASSERT_TRUE(AllAsleep(pool));
  // Loops of 20 us by the clock, each too short to wake somebody for.
  std::set<std::thread::id> who;
  std::mutex mutex;
  EXPECT_TRUE(Eventually([&] {
    pool.ParallelFor(5, pool.Grain(5, 1, 4000.0), [&](int64_t begin, int64_t end) {
      const auto until =
          std::chrono::steady_clock::now() + (end - begin) * std::chrono::microseconds(4);
      while (std::chrono::steady_clock::now() < until) {
      }
      const std::scoped_lock lock(mutex);
      who.insert(std::this_thread::get_id());
    });
    return who.size() == 3;
  }));
  // And sleep again when no more come.
  EXPECT_TRUE(AllAsleep(pool));
}

TEST(ThreadPoolTest, DoesNotAllocate) {
  ThreadPool pool(3);
  int64_t a[64] = {};
  int64_t b = 2, c = 3, d = 5;  // more captures than a std::function holds without the heap
  const int64_t before = allocations;
  for (int loop = 0; loop < 100; ++loop) {
    pool.ParallelFor(64, 4, [&a, b, c, d](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) a[i] += b * c * d;
    });
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(a[63], 3000);
}

TEST(ThreadPoolTest, AcceptsAStdFunction) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  const ThreadPool::Body body = [&](int64_t begin, int64_t end) { sum += end - begin; };
  pool.ParallelFor(100, 7, body);
  EXPECT_EQ(sum, 100);
}

TEST(ThreadPoolDeathTest, RefusesNestingAndThrowing) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto nest = [] {
    ThreadPool pool(2);
    pool.ParallelFor(4, 1,
                     [&](int64_t, int64_t) { pool.ParallelFor(4, 1, [](int64_t, int64_t) {}); });
  };
  EXPECT_DEATH(nest(), "running_");
  const auto raise = [] {
    ThreadPool pool(2);
    pool.ParallelFor(4, 1, [&](int64_t, int64_t) { throw 1; });
  };
  EXPECT_DEATH(raise(), "");
}

TEST(UsableProcessorsTest, FollowsTheAffinityMask) {
  const int all = UsableProcessors();
  EXPECT_GE(all, 1);
  EXPECT_LE(all, static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t old_mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(old_mask), &old_mask), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &old_mask)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableProcessors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(old_mask), &old_mask), 0);
}

}  // namespace
}  // namespace deltafin
