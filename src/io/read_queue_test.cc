#include "io/read_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "base/format.h"
#include "io/read_loop.h"
#include "io/testing_file_system.h"

namespace deltafin {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Buffer = AlignedBuffer<std::byte, kReadAlignment>;

// Keeps what it hears.
class Collector final : public ReadListener {
 public:
  void OnRead(uint64_t tag, std::span<const std::byte> data) noexcept override {
    const std::lock_guard lock(mutex_);
    order_.push_back(tag);
    data_[tag] = data;
    changed_.notify_all();
  }
  void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept override {
    const std::lock_guard lock(mutex_);
    order_.push_back(tag);
    try {
      std::rethrow_exception(std::move(error));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      errors_[tag] = e.what();
    }
    changed_.notify_all();
  }

  void WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return order_.size() >= count; });
  }
  std::vector<uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  std::span<const std::byte> data(uint64_t tag) {
    const std::lock_guard lock(mutex_);
    return data_[tag];
  }
  // "" when the read did not fail.
  std::string error(uint64_t tag) {
    const std::lock_guard lock(mutex_);
    return errors_[tag];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> order_;
  std::map<uint64_t, std::span<const std::byte>> data_;
  std::map<uint64_t, std::string> errors_;
};

// A file in memory whose reads wait at a gate, to see what starts when.
class GatedFile final : public ReadableFile {
 public:
  explicit GatedFile(uint64_t size) : size_(size) {}
  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
    std::unique_lock lock(mutex_);
    started_.push_back(offset);
    most_ = std::max(most_, ++reading_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return tickets_ > 0; });
    --tickets_;
    --reading_;
    std::fill(dst.begin(), dst.end(), std::byte{1});
  }
  uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }

  void Open(int tickets) {
    const std::lock_guard lock(mutex_);
    tickets_ += tickets;
    changed_.notify_all();
  }
  std::vector<uint64_t> WaitForStarts(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return started_.size() >= count; });
    return started_;
  }
  size_t num_started() const {
    const std::lock_guard lock(mutex_);
    return started_.size();
  }
  int most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  const uint64_t size_;
  const std::string path_ = "gated";
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::vector<uint64_t> started_;
  mutable int tickets_ = 0;
  mutable int reading_ = 0;
  mutable int most_ = 0;
};

struct Case {
  ReadEngine engine;
  ReadMode mode;
};

std::string NameOf(const Case& c) {
  return format("{}_{}", c.engine == ReadEngine::kThreads ? "threads" : "io_uring",
                c.mode == ReadMode::kDirect ? "direct" : "buffered");
}

// "" when this kernel allows the engine.
std::string WhyNot(ReadEngine engine) {
  try {
    MakeReadQueue({.engine = engine});
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    return e.what();
  }
}

class ReadQueueTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(GetParam().engine); !why.empty()) GTEST_SKIP() << why;
    std::string pattern = ::testing::TempDir() + "deltafin_queue_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  ~ReadQueueTest() override {
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }

  ReadQueueOptions Options(int depth, uint64_t split_bytes) {
    ReadQueueOptions options;
    options.engine = GetParam().engine;
    options.mode = GetParam().mode;
    options.depth = depth;
    options.split_bytes = split_bytes;
    options.on_notice = [this](const std::string& notice) {
      const std::lock_guard lock(mutex_);
      notices_.push_back(notice);
    };
    return options;
  }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::string path = JoinPath(dir_, name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::string dir_;
  std::mutex mutex_;
  std::vector<std::string> notices_;
};

INSTANTIATE_TEST_SUITE_P(All, ReadQueueTest,
                         ::testing::Values(Case{ReadEngine::kThreads, ReadMode::kBuffered},
                                           Case{ReadEngine::kThreads, ReadMode::kDirect},
                                           Case{ReadEngine::kIoUring, ReadMode::kBuffered},
                                           Case{ReadEngine::kIoUring, ReadMode::kDirect}),
                         [](const auto& param_info) { return NameOf(param_info.param); });

std::string RandomBytes(size_t size, std::mt19937& random) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string_view Text(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// A read with its own buffer.
struct OwnRead {
  Buffer buffer;
  ReadRequest request;
};

OwnRead MakeRead(const ReadableFile& file, uint64_t offset, uint64_t bytes, uint64_t tag,
                 ReadListener& listener, ReadPriority priority = ReadPriority::kDemand) {
  OwnRead read{Buffer(ReadBufferBytes(bytes)), {}};
  read.request = {&file, offset, bytes, read.buffer.data(), priority, tag, &listener};
  return read;
}

// Sizes and offsets around the borders of pages, pieces and the file, against the bytes written.
TEST_P(ReadQueueTest, RandomReadsGiveTheBytesOfTheFile) {
  std::mt19937 random(7);
  const std::vector<size_t> sizes = {1, 511, 4095, 4096, 4097, 3 * 4096, 1'000'003};
  std::vector<std::string> contents;
  std::vector<std::unique_ptr<ReadableFile>> files;
  for (const size_t size : sizes) {
    contents.push_back(RandomBytes(size, random));
    files.push_back(RealFileSystem().OpenForReading(Write(std::to_string(size), contents.back())));
  }
  for (const int depth : {1, 3, 16}) {
    for (const uint64_t split : {4096u, 5000u, 65536u, 4u << 20}) {
      Collector collector;
      const auto queue = MakeReadQueue(Options(depth, split));
      std::vector<OwnRead> reads;
      std::vector<size_t> file_of;
      std::vector<ReadRequest> requests;
      for (uint64_t tag = 0; tag < 60; ++tag) {
        const size_t file = random() % sizes.size();
        const uint64_t offset = random() % sizes[file];
        // Every third read ends where the file does.
        const uint64_t left = sizes[file] - offset;
        const uint64_t bytes = tag % 3 == 0 ? left : 1 + random() % left;
        reads.push_back(MakeRead(*files[file], offset, bytes, tag, collector,
                                 tag % 4 == 0 ? ReadPriority::kAhead : ReadPriority::kDemand));
        file_of.push_back(file);
        requests.push_back(reads.back().request);
      }
      queue->Submit(std::span(requests).first(20));
      queue->Submit(std::span(requests).subspan(20));
      collector.WaitFor(requests.size());
      for (const ReadRequest& r : requests) {
        ASSERT_EQ(collector.error(r.tag), "");
        const std::string_view expected =
            std::string_view(contents[file_of[r.tag]]).substr(r.offset, r.bytes);
        ASSERT_TRUE(Text(collector.data(r.tag)) == expected)
            << "file of " << contents[file_of[r.tag]].size() << ", " << r.bytes << " at "
            << r.offset;
        ASSERT_GE(collector.data(r.tag).data(), r.buffer);
        ASSERT_LE(collector.data(r.tag).data() + r.bytes, r.buffer + ReadBufferBytes(r.bytes));
      }
    }
  }
}

// The bytes after a buffer are not the queue's.
TEST_P(ReadQueueTest, WritesNothingBeyondTheBuffer) {
  std::mt19937 random(8);
  const std::string content = RandomBytes(40'000, random);
  const auto file = RealFileSystem().OpenForReading(Write("a", content));
  const auto queue = MakeReadQueue(Options(4, 8192));
  for (const uint64_t offset : {0u, 1u, 4095u, 4096u, 30'000u}) {
    for (const uint64_t bytes : {1u, 4096u, 4097u, 10'000u}) {
      Collector collector;
      const size_t own = ReadBufferBytes(bytes);
      Buffer buffer(own + kReadAlignment);
      std::fill(buffer.begin(), buffer.end(), std::byte{0x5a});
      queue->Submit(std::vector<ReadRequest>{
          {file.get(), offset, bytes, buffer.data(), ReadPriority::kDemand, 0, &collector}});
      collector.WaitFor(1);
      EXPECT_EQ(Text(collector.data(0)), std::string_view(content).substr(offset, bytes));
      EXPECT_TRUE(std::all_of(buffer.begin() + own, buffer.end(),
                              [](std::byte b) { return b == std::byte{0x5a}; }));
    }
  }
}

TEST_P(ReadQueueTest, DestructionDrains) {
  std::mt19937 random(9);
  const std::string content = RandomBytes(300'000, random);
  const auto file = RealFileSystem().OpenForReading(Write("a", content));
  Collector collector;
  std::vector<OwnRead> reads;
  std::vector<ReadRequest> requests;
  for (uint64_t tag = 0; tag < 100; ++tag) {
    reads.push_back(MakeRead(*file, tag * 1000, 150'001, tag, collector,
                             tag % 2 == 0 ? ReadPriority::kAhead : ReadPriority::kDemand));
    requests.push_back(reads.back().request);
  }
  MakeReadQueue(Options(8, 4096 * 5))->Submit(requests);
  EXPECT_EQ(collector.order().size(), 100u);
  for (uint64_t tag = 0; tag < 100; ++tag) {
    EXPECT_TRUE(Text(collector.data(tag)) == std::string_view(content).substr(tag * 1000, 150'001));
  }
}

TEST_P(ReadQueueTest, FileThatEndsTooSoon) {
  std::mt19937 random(10);
  const std::string path = Write("short", RandomBytes(100'000, random));
  const auto file = RealFileSystem().OpenForReading(path);
  std::filesystem::resize_file(path, 50'000);
  const auto queue = MakeReadQueue(Options(4, 16384));
  Collector collector;
  const OwnRead beyond = MakeRead(*file, 10'000, 80'000, 1, collector);
  const OwnRead whole = MakeRead(*file, 10'000, 40'000, 2, collector);
  queue->Submit(std::vector{beyond.request, whole.request});
  collector.WaitFor(2);
  EXPECT_THAT(collector.error(1), AllOf(HasSubstr(path + ": reading "), HasSubstr(" at offset "),
                                        HasSubstr("the file ended")));
  EXPECT_EQ(collector.error(2), "");
}

// Files without a descriptor (hub, tests) are read through ReadAt, so that faults are real ones.
TEST_P(ReadQueueTest, FaultsOfTheFileSystemArrive) {
  std::mt19937 random(11);
  MemoryFileSystem memory;
  const std::string content = RandomBytes(200'000, random);
  memory.Write("a", content);
  FaultyFileSystem fs(memory);
  const auto file = fs.OpenForReading("a");
  const auto queue = MakeReadQueue(Options(4, 16384));
  Collector collector;
  OwnRead read = MakeRead(*file, 5000, 100'000, 0, collector);
  queue->Submit(std::span(&read.request, 1));
  collector.WaitFor(1);
  EXPECT_TRUE(Text(collector.data(0)) == std::string_view(content).substr(5000, 100'000));
  // Each of the seven pieces in turn.
  const int64_t num_pieces = fs.num_reads();
  EXPECT_EQ(num_pieces, 7);
  for (int64_t n = 0; n < num_pieces; ++n) {
    fs.FailReads("a", n);
    read.request.tag = static_cast<uint64_t>(n) + 1;
    queue->Submit(std::span(&read.request, 1));
    collector.WaitFor(static_cast<size_t>(n) + 2);
    EXPECT_THAT(collector.error(read.request.tag), HasSubstr("Input/output error"));
    fs.ClearFaults();
  }
  read.request.tag = 100;
  queue->Submit(std::span(&read.request, 1));
  collector.WaitFor(static_cast<size_t>(num_pieces) + 2);
  EXPECT_EQ(collector.error(100), "");
  EXPECT_THAT(notices_, IsEmpty());
}

// One piece of many fails: one report, after which nothing of the read is in flight.
TEST_P(ReadQueueTest, FailureIsToldOnce) {
  MemoryFileSystem memory;
  memory.Write("a", std::string(1 << 20, 'x'));
  FaultyFileSystem fs(memory);
  const auto file = fs.OpenForReading("a");
  Collector collector;
  for (int trial = 0; trial < 20; ++trial) {
    fs.FailReads("a", trial, 3);
    {
      const auto queue = MakeReadQueue(Options(6, 4096));
      const OwnRead read = MakeRead(*file, 1, 500'000, static_cast<uint64_t>(trial), collector);
      queue->Submit(std::span(&read.request, 1));
      collector.WaitFor(static_cast<size_t>(trial) + 1);
    }
    fs.ClearFaults();
    EXPECT_EQ(collector.order().size(), static_cast<size_t>(trial) + 1);
  }
}

TEST_P(ReadQueueTest, DemandedReadsGoFirst) {
  GatedFile file(1 << 20);
  Collector collector;
  std::vector<OwnRead> reads;
  const auto queue = MakeReadQueue(Options(4, 4096));
  const auto submit = [&](uint64_t page, ReadPriority priority) {
    reads.push_back(MakeRead(file, page * 4096, 4096, page, collector, priority));
    queue->Submit(std::span(&reads.back().request, 1));
  };
  // Half of the depth takes guesses; a demanded read starts at once all the same.
  for (uint64_t page = 0; page < 6; ++page) submit(page, ReadPriority::kAhead);
  file.WaitForStarts(2);
  submit(10, ReadPriority::kDemand);
  submit(11, ReadPriority::kDemand);
  std::vector<uint64_t> started = file.WaitForStarts(4);
  std::sort(started.begin(), started.end());
  EXPECT_THAT(started, ElementsAre(0, 4096, 40960, 45056));
  // Whatever finishes, what is demanded starts next.
  for (uint64_t page = 12; page < 16; ++page) submit(page, ReadPriority::kDemand);
  file.Open(4);
  started = file.WaitForStarts(8);
  std::sort(started.begin() + 4, started.end());
  EXPECT_EQ(started[4], 12u * 4096);
  EXPECT_EQ(started[7], 15u * 4096);
  file.Open(100);
  collector.WaitFor(12);
  EXPECT_LE(file.most(), 4);
}

// What is certain to be needed may take the whole depth, and goes before guesses.
TEST_P(ReadQueueTest, SoonGoesBetween) {
  GatedFile file(1 << 20);
  Collector collector;
  std::vector<OwnRead> reads;
  const auto queue = MakeReadQueue(Options(2, 4096));
  const auto submit = [&](uint64_t page, ReadPriority priority) {
    reads.push_back(MakeRead(file, page * 4096, 4096, page, collector, priority));
    queue->Submit(std::span(&reads.back().request, 1));
  };
  submit(0, ReadPriority::kSoon);
  submit(1, ReadPriority::kSoon);
  file.WaitForStarts(2);
  submit(2, ReadPriority::kAhead);
  submit(3, ReadPriority::kSoon);
  submit(4, ReadPriority::kSoon);
  submit(5, ReadPriority::kDemand);
  submit(6, ReadPriority::kSoon);
  queue->Promote(&collector, 4);
  EXPECT_TRUE(queue->Cancel(&collector, 6));
  for (size_t i = 1; i <= 6; ++i) {
    file.Open(1);
    if (i <= 4) file.WaitForStarts(2 + i);
  }
  collector.WaitFor(6);
  const std::vector<uint64_t> started = file.WaitForStarts(6);
  EXPECT_EQ(std::vector<uint64_t>(started.begin() + 2, started.end()),
            (std::vector<uint64_t>{5 * 4096, 4 * 4096, 3 * 4096, 2 * 4096}));
}

TEST_P(ReadQueueTest, CancelAndPromoteWhatWaits) {
  GatedFile file(1 << 20);
  Collector collector;
  Collector other;
  std::vector<OwnRead> reads;
  const auto queue = MakeReadQueue(Options(1, 4096));
  const auto submit = [&](uint64_t page, ReadPriority priority) {
    reads.push_back(MakeRead(file, page * 4096, 4096, page, collector, priority));
    queue->Submit(std::span(&reads.back().request, 1));
  };
  submit(0, ReadPriority::kDemand);
  file.WaitForStarts(1);
  submit(1, ReadPriority::kAhead);
  submit(2, ReadPriority::kAhead);
  submit(3, ReadPriority::kAhead);
  submit(4, ReadPriority::kDemand);
  submit(5, ReadPriority::kDemand);
  EXPECT_FALSE(queue->Cancel(&collector, 0));  // started
  EXPECT_FALSE(queue->Cancel(&collector, 9));  // unknown
  EXPECT_FALSE(queue->Cancel(&other, 4));      // somebody else's
  EXPECT_TRUE(queue->Cancel(&collector, 4));
  EXPECT_TRUE(queue->Cancel(&collector, 1));
  EXPECT_FALSE(queue->Cancel(&collector, 1));
  queue->Promote(&collector, 3);
  queue->Promote(&collector, 0);
  queue->Promote(&collector, 9);
  file.Open(100);
  collector.WaitFor(4);
  EXPECT_THAT(collector.order(), ElementsAre(0, 5, 3, 2));
}

// A cancelled read is never heard of, every other one exactly once, whatever the timing.
TEST_P(ReadQueueTest, CancelRacesWithTheRead) {
  std::mt19937 random(12);
  const auto file = RealFileSystem().OpenForReading(Write("a", RandomBytes(100'000, random)));
  Collector collector;
  constexpr uint64_t kReads = 400;
  std::vector<OwnRead> reads;
  for (uint64_t tag = 0; tag < kReads; ++tag) {
    reads.push_back(MakeRead(*file, random() % 90'000, 10'000, tag, collector,
                             random() % 2 == 0 ? ReadPriority::kAhead : ReadPriority::kDemand));
  }
  std::vector<uint64_t> expected;
  {
    const auto queue = MakeReadQueue(Options(3, 4096));
    std::vector<char> cancelled(kReads, 0);
    std::thread submitter([&] {
      for (const OwnRead& read : reads) queue->Submit(std::span(&read.request, 1));
    });
    std::thread canceller([&] {
      for (uint64_t tag = 1; tag < kReads; tag += 2) {
        for (int attempt = 0; attempt < 5 && cancelled[tag] == 0; ++attempt) {
          queue->Promote(&collector, tag - 1);
          cancelled[tag] = queue->Cancel(&collector, tag);
          if (cancelled[tag] == 0) std::this_thread::yield();
        }
      }
    });
    submitter.join();
    canceller.join();
    for (uint64_t tag = 0; tag < kReads; ++tag) {
      if (cancelled[tag] == 0) expected.push_back(tag);
    }
  }
  std::vector<uint64_t> heard = collector.order();
  std::sort(heard.begin(), heard.end());
  EXPECT_EQ(heard, expected);
}

// A file whose file system refuses direct reads.
class RefusingFile final : public ReadableFile {
 public:
  explicit RefusingFile(std::unique_ptr<ReadableFile> base) : base_(std::move(base)) {}
  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
    base_->ReadAt(offset, dst);
  }
  uint64_t size() const override { return base_->size(); }
  const std::string& path() const override { return base_->path(); }
  int Descriptor(ReadMode mode) const override {
    return mode == ReadMode::kDirect ? -1 : base_->Descriptor(mode);
  }

 private:
  const std::unique_ptr<ReadableFile> base_;
};

TEST_P(ReadQueueTest, RefusedDirectReadsAreBufferedAndToldOnce) {
  std::mt19937 random(13);
  const std::string content = RandomBytes(100'000, random);
  const RefusingFile file(RealFileSystem().OpenForReading(Write("a", content)));
  Collector collector;
  const OwnRead first = MakeRead(file, 777, 60'000, 1, collector);
  const OwnRead second = MakeRead(file, 4096, 4096, 2, collector);
  {
    const auto queue = MakeReadQueue(Options(4, 16384));
    queue->Submit(std::vector{first.request, second.request});
  }
  EXPECT_TRUE(Text(collector.data(1)) == std::string_view(content).substr(777, 60'000));
  EXPECT_TRUE(Text(collector.data(2)) == std::string_view(content).substr(4096, 4096));
  if (GetParam().mode == ReadMode::kDirect) {
    EXPECT_THAT(notices_, ElementsAre(AllOf(HasSubstr(file.path()), HasSubstr("direct"))));
  } else {
    EXPECT_THAT(notices_, IsEmpty());
  }
}

TEST_P(ReadQueueTest, Describe) {
  const std::string text = MakeReadQueue(Options(5, 4096))->Describe();
  const bool threads = GetParam().engine == ReadEngine::kThreads;
  EXPECT_EQ(text, format("{}, {}, 5 deep", threads ? "threads" : "io_uring",
                         GetParam().mode == ReadMode::kDirect ? "direct" : "buffered"));
}

#if defined(__linux__)

// Lets the kernel answer io_uring_setup with `error` from now on, for this process.
void RefuseUring(int error) {
  constexpr uint32_t kSetup = 425;  // on every architecture
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, kSetup},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {std::size(code), code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::fputs("no seccomp", stderr);
    std::exit(0);
  }
}

// Containers and hardened kernels do this.
TEST(ReadQueueDeathTest, RefusedUringIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int error : {EPERM, ENOSYS, ENOMEM}) {
    EXPECT_EXIT(
        {
          RefuseUring(error);
          std::fputs(WhyNot(ReadEngine::kIoUring).c_str(), stderr);
          std::exit(0);
        },
        ::testing::ExitedWithCode(0),
        "no seccomp|without liburing|the kernel refuses it \\(.*read with threads");
  }
}

#endif

// --- The loop around direct reads ---

struct FakeDirectFile {
  std::string content;
  size_t most = SIZE_MAX;  // bytes per call
  int error_at = -1;       // number of the call that fails
  int error = 0;
  int calls = 0;

  ssize_t operator()(void* dst, size_t bytes, off_t offset) {
    EXPECT_EQ(offset % static_cast<off_t>(kReadAlignment), 0);
    EXPECT_EQ(bytes % kReadAlignment, 0u);
    if (calls++ == error_at) {
      errno = error;
      return -1;
    }
    const size_t at = std::min(static_cast<size_t>(offset), content.size());
    const size_t count = std::min({bytes, most, content.size() - at});
    std::memcpy(dst, content.data() + at, count);
    return static_cast<ssize_t>(count);
  }
};

std::string DirectError(FakeDirectFile fake, uint64_t offset, size_t pages, size_t needed) {
  Buffer buffer(pages * kReadAlignment);
  try {
    const bool direct = ReadDirectFully(std::ref(fake), "fake", offset,
                                        std::span(buffer.data(), buffer.size()), needed);
    if (!direct) return "refused";
    EXPECT_EQ(Text({buffer.data(), needed}), std::string_view(fake.content).substr(offset, needed));
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIo);
    return e.what();
  }
}

TEST(ReadDirectFully, ShortReadsAndTheEndOfTheFile) {
  std::mt19937 random(14);
  const std::string content = RandomBytes(20'000, random);
  for (const size_t most : {size_t{4096}, size_t{5000}, size_t{6144}, SIZE_MAX}) {
    EXPECT_EQ(DirectError({content, most}, 0, 5, 20'000), "") << most;
    EXPECT_EQ(DirectError({content, most}, 8192, 3, 20'000 - 8192), "") << most;
    EXPECT_EQ(DirectError({content, most}, 4096, 2, 4097), "") << most;
  }
  EXPECT_EQ(DirectError({content}, 16384, 1, 3617),
            "fake: reading 3617 bytes at offset 16384: got 3616 bytes, then the file ended");
  EXPECT_EQ(DirectError({content}, 40960, 1, 1),
            "fake: reading 1 bytes at offset 40960: got 0 bytes, then the file ended");
}

TEST(ReadDirectFully, Errors) {
  const std::string content(20'000, 'x');
  EXPECT_EQ(DirectError({content, 4096, 1, EINTR}, 0, 5, 20'000), "");
  EXPECT_EQ(DirectError({content, 4096, 0, EINVAL}, 0, 5, 20'000), "refused");
  EXPECT_EQ(DirectError({content, 4096, 2, EIO}, 0, 5, 20'000),
            "fake: reading 20000 bytes at offset 0: got 8192 bytes, then Input/output error");
}

}  // namespace
}  // namespace deltafin
