// A queue for each disk behind one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "base/buffer.h"
#include "io/read_queue.h"
#include "io/testing_file_system.h"

namespace deltafin {
namespace {

using Buffer = AlignedBuffer<std::byte, kReadAlignment>;

class Counter final : public ReadListener {
 public:
  void OnRead(uint64_t, std::span<const std::byte>) noexcept override { Add(1, 0); }
  void OnReadFailed(uint64_t, std::exception_ptr) noexcept override { Add(0, 1); }
  void WaitFor(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return read_ + failed_ >= count; });
  }
  int read() {
    const std::lock_guard lock(mutex_);
    return read_;
  }

 private:
  void Add(int read, int failed) {
    const std::lock_guard lock(mutex_);
    read_ += read;
    failed_ += failed;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int read_ = 0;
  int failed_ = 0;
};

// Blocks every read until it is opened. It has no descriptor, so it is of disk 0.
class StuckFile final : public ReadableFile {
 public:
  void ReadAt(uint64_t, std::span<std::byte>) const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  uint64_t size() const override { return 1 << 20; }
  const std::string& path() const override { return path_; }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  const std::string path_ = "stuck";
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool open_ = false;
};

class ReadQueuesTest : public testing::Test {
 protected:
  ReadQueuesTest() {
    std::ofstream(path_, std::ios::binary) << std::string(100'000, 'x');
    file_ = RealFileSystem().OpenForReading(path_);
  }
  ~ReadQueuesTest() override { std::filesystem::remove(path_); }

  ReadRequest Request(const ReadableFile& file, size_t i) {
    const size_t bytes = 4000;
    ReadRequest request;
    request.file = &file;
    request.offset = 100;
    request.bytes = bytes;
    request.buffer = buffer_.data() + i * ReadBufferBytes(bytes);
    request.tag = i;
    request.listener = &counter_;
    return request;
  }

  const std::string path_ =
      testing::TempDir() + "deltafin_read_queues_" + std::to_string(::getpid());
  std::unique_ptr<ReadableFile> file_;
  StuckFile stuck_;
  Buffer buffer_ = Buffer(size_t{1} << 20);
  Counter counter_;
};

TEST_F(ReadQueuesTest, ADiskThatIsStuckHoldsUpNoOther) {
  EXPECT_NE(DiskOf(*file_), 0u);
  EXPECT_EQ(DiskOf(stuck_), 0u);
  ReadQueueOptions one_deep;
  one_deep.depth = 1;
  const auto queue = MakeReadQueues({{DiskOf(*file_), one_deep}, {0, one_deep}});
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < 10; ++i)
    requests.push_back(i % 2 == 0 ? Request(stuck_, i) : Request(*file_, i));
  queue->Submit(requests);
  counter_.WaitFor(5);
  EXPECT_EQ(counter_.read(), 5);
  EXPECT_EQ(queue->counters().bytes, 5 * 4000u);
  // Whichever queue has it.
  EXPECT_TRUE(queue->Cancel(&counter_, 8));
  EXPECT_FALSE(queue->Cancel(&counter_, 8));
  EXPECT_FALSE(queue->Cancel(&counter_, 1));
  queue->Promote(&counter_, 6);
  stuck_.Open();
  counter_.WaitFor(9);
  EXPECT_EQ(counter_.read(), 9);
  EXPECT_EQ(queue->counters().bytes, 9 * 4000u);
  EXPECT_GT(queue->counters().busy_seconds, 0);
  EXPECT_EQ(queue->Describe(), "threads, buffered, 1 deep; threads, buffered, 1 deep");
}

TEST_F(ReadQueuesTest, AnUnknownDiskGoesToTheFirst) {
  const auto queue = MakeReadQueues({{12345, {}}, {67890, {}}});
  const ReadRequest request = Request(*file_, 0);
  queue->Submit({&request, 1});
  counter_.WaitFor(1);
  EXPECT_EQ(counter_.read(), 1);
}

TEST_F(ReadQueuesTest, FailedReadsCountNoBytes) {
  const auto queue = MakeReadQueue({});
  ReadRequest request = Request(*file_, 0);
  request.offset = 200'000;
  queue->Submit({&request, 1});
  counter_.WaitFor(1);
  EXPECT_EQ(counter_.read(), 0);
  EXPECT_EQ(queue->counters().bytes, 0u);
}

}  // namespace
}  // namespace deltafin
