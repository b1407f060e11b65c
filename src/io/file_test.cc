#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/read_loop.h"

namespace deltafin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = ::testing::TempDir() + "deltafin_file_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  ~FileTest() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, std::string_view bytes) {
    std::string path = JoinPath(dir_, name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::string dir_;
  FileSystem& fs_ = RealFileSystem();
};

template <class F>
Error ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "expected an Error";
  return Error(ErrorCode::kInvalidArgument, "none");
}

std::string ReadString(const ReadableFile& file, uint64_t offset, size_t bytes) {
  std::string text(bytes, '?');
  file.ReadAt(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST_F(FileTest, ReadsAtOffsets) {
  const std::string path = Write("a", "0123456789");
  const auto file = fs_.OpenForReading(path);
  EXPECT_EQ(file->size(), 10u);
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(ReadString(*file, 0, 10), "0123456789");
  EXPECT_EQ(ReadString(*file, 7, 3), "789");
  EXPECT_EQ(ReadString(*file, 10, 0), "");
}

TEST_F(FileTest, ReadingPastTheEndSaysWhereAndHowMuch) {
  const std::string path = Write("short", "0123456789");
  const auto file = fs_.OpenForReading(path);
  const Error e = ErrorOf([&] { ReadString(*file, 6, 8); });
  EXPECT_EQ(e.code(), ErrorCode::kIo);
  EXPECT_EQ(std::string(e.what()),
            path + ": reading 8 bytes at offset 6: got 4 bytes, then the file ended");
}

TEST_F(FileTest, FileCutAfterOpening) {
  const std::string path = Write("cut", "0123456789");
  const auto file = fs_.OpenForReading(path);
  std::filesystem::resize_file(path, 3);
  EXPECT_EQ(ErrorOf([&] { ReadString(*file, 0, 10); }).code(), ErrorCode::kIo);
}

TEST_F(FileTest, OffsetsBeyondFourGibibytes) {
  const std::string path = Write("sparse", "");
  const uint64_t offset = (uint64_t{5} << 30) + 123;
  std::filesystem::resize_file(path, offset);
  std::ofstream(path, std::ios::binary | std::ios::app) << "tail";
  const auto file = fs_.OpenForReading(path);
  EXPECT_EQ(file->size(), offset + 4);
  EXPECT_EQ(ReadString(*file, offset, 4), "tail");
}

TEST_F(FileTest, OpenErrors) {
  const Error missing = ErrorOf([&] { fs_.OpenForReading(JoinPath(dir_, "none")); });
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.what(), AllOf(HasSubstr("none"), HasSubstr("No such file")));
  const std::string file = Write("file", "x");
  EXPECT_EQ(ErrorOf([&] { fs_.OpenForReading(file + "/below"); }).code(), ErrorCode::kNotFound);
  const Error folder = ErrorOf([&] { fs_.OpenForReading(dir_); });
  EXPECT_EQ(folder.code(), ErrorCode::kIo);
  EXPECT_THAT(folder.what(), HasSubstr("not a regular file"));
  const std::string pipe = JoinPath(dir_, "pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf([&] { fs_.OpenForReading(pipe); }).code(), ErrorCode::kIo);
}

TEST_F(FileTest, Exists) {
  EXPECT_TRUE(fs_.Exists(Write("here", "")));
  EXPECT_FALSE(fs_.Exists(JoinPath(dir_, "none")));
}

TEST_F(FileTest, ReadWholeFile) {
  const std::string path = Write("whole", std::string_view("a\0b", 3));
  EXPECT_EQ(ReadWholeFile(fs_, path, 3), std::string_view("a\0b", 3));
  const Error e = ErrorOf([&] { ReadWholeFile(fs_, path, 2); });
  EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(e.what(), AllOf(HasSubstr(path), HasSubstr("3 bytes"), HasSubstr("at most 2")));
  EXPECT_EQ(ReadWholeFile(fs_, Write("empty", ""), 0), "");
}

TEST(JoinPath, OneSlash) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
}

// A kernel that is interrupted before every call and then hands out at most three bytes.
TEST(ReadFully, ShortAndInterruptedReads) {
  const std::string content = "The quick brown fox";
  bool interrupted = false;
  const PreadFunction pread = [&](void* dst, size_t bytes, off_t offset) -> ssize_t {
    interrupted = !interrupted;
    if (interrupted) {
      errno = EINTR;
      return -1;
    }
    const size_t at = static_cast<size_t>(offset);
    const size_t n = std::min({bytes, size_t{3}, content.size() - at});
    std::memcpy(dst, content.data() + at, n);
    return static_cast<ssize_t>(n);
  };
  std::string text(15, '?');
  ReadFully(pread, "fake", 4, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "quick brown fox");
}

TEST(ReadFully, ErrorAfterSomeBytes) {
  int calls = 0;
  const PreadFunction pread = [&](void*, size_t, off_t) -> ssize_t {
    if (++calls == 1) return 5;
    errno = EIO;
    return -1;
  };
  std::string text(9, '?');
  const Error e =
      ErrorOf([&] { ReadFully(pread, "fake", 100, std::as_writable_bytes(std::span(text))); });
  EXPECT_EQ(e.code(), ErrorCode::kIo);
  EXPECT_EQ(std::string(e.what()),
            "fake: reading 9 bytes at offset 100: got 5 bytes, then Input/output error");
}

// Five GiB in one call through a kernel with the limit of macOS (2 GiB is refused). The memory is
// only reserved: the fake kernel writes nothing.
TEST(ReadFully, MoreThanTwoGibibytes) {
  const size_t total = (size_t{5} << 30) + 1;
  void* memory =
      ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  size_t read = 0;
  const PreadFunction pread = [&](void* dst, size_t bytes, off_t offset) -> ssize_t {
    if (bytes >= size_t{1} << 31) {
      errno = EINVAL;
      return -1;
    }
    EXPECT_EQ(static_cast<size_t>(offset), 7 + read);
    EXPECT_EQ(dst, static_cast<std::byte*>(memory) + read);
    read += bytes;
    return static_cast<ssize_t>(bytes);
  };
  ReadFully(pread, "fake", 7, std::span(static_cast<std::byte*>(memory), total));
  EXPECT_EQ(read, total);
  ::munmap(memory, total);
}

TEST(ReadFully, RefusesOffsetsThatOverflow) {
  const PreadFunction pread = [](void*, size_t, off_t) -> ssize_t {
    ADD_FAILURE() << "must not be called";
    return 0;
  };
  std::string text(2, '?');
  for (const uint64_t offset : {UINT64_MAX, uint64_t{1} << 63, (uint64_t{1} << 63) - 2}) {
    EXPECT_EQ(ErrorOf([&] {
                ReadFully(pread, "fake", offset, std::as_writable_bytes(std::span(text)));
              }).code(),
              ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace deltafin
