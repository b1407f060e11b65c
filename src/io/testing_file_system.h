// File systems for tests: files in memory, and a wrapper that makes any file system fail on cue.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "io/file.h"
#include "io/read_loop.h"
#include "io/sparse_file.h"

namespace deltafin {

// Files that exist by their path only; there are no folders. Thread-safe once filled.
class MemoryFileSystem final : public FileSystem {
 public:
  void Write(const std::string& path, std::string bytes) {
    files_[path] = std::make_shared<const std::string>(std::move(bytes));
  }

  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    const auto file = files_.find(path);
    if (file == files_.end()) {
      throw Error(ErrorCode::kNotFound, path + ": cannot open: No such file or directory");
    }
    return std::make_unique<File>(path, file->second);
  }
  bool Exists(const std::string& path) override { return files_.contains(path); }

 private:
  class File final : public ReadableFile {
   public:
    File(std::string path, std::shared_ptr<const std::string> bytes)
        : path_(std::move(path)), bytes_(std::move(bytes)) {}
    void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
      const auto pread = [this](void* to, size_t bytes, off_t at) -> ssize_t {
        const size_t begin = std::min(static_cast<size_t>(at), bytes_->size());
        const size_t count = std::min(bytes, bytes_->size() - begin);
        std::memcpy(to, bytes_->data() + begin, count);
        return static_cast<ssize_t>(count);
      };
      ReadFully(pread, path_, offset, dst);
    }
    uint64_t size() const override { return bytes_->size(); }
    const std::string& path() const override { return path_; }

   private:
    const std::string path_;
    const std::shared_ptr<const std::string> bytes_;
  };

  std::map<std::string, std::shared_ptr<const std::string>> files_;
};

// Passes everything on to `base` except what it was told to break. Files are chosen by the end of
// their path; "" chooses all. Thread-safe: faults may be set and cleared while files are open.
class FaultyFileSystem final : public FileSystem {
 public:
  // `base` must outlive this and its files; this must outlive its files.
  explicit FaultyFileSystem(FileSystem& base) : base_(base) {}

  // Counting from now, read number `skip` (0: the next one) and the `count - 1` after it throw
  // Error(kIo) as a failing disk would. Reads of other files do not count.
  void FailReads(const std::string& path_end, int64_t skip, int64_t count = 1) {
    const std::lock_guard lock(mutex_);
    failures_.push_back({path_end, skip, count});
  }
  // Counted as for FailReads, these come in two parts, as the system may do: nobody must notice.
  void SplitReads(const std::string& path_end, int64_t skip, int64_t count = 1) {
    const std::lock_guard lock(mutex_);
    splits_.push_back({path_end, skip, count});
  }
  // As FailReads, for writes of scratch files; `code` is kNoSpace or kIo.
  void FailWrites(ErrorCode code, int64_t skip, int64_t count = 1) {
    const std::lock_guard lock(mutex_);
    write_error_ = code;
    write_failures_.push_back({"", skip, count});
  }
  // As FailReads, for the calls of pwrite(2) that fill sparse files; `error` is an errno.
  void FailFills(const std::string& path_end, int error, int64_t skip, int64_t count = 1) {
    const std::lock_guard lock(mutex_);
    fill_error_ = error;
    fill_failures_.push_back({path_end, skip, count});
  }
  // Counted as for FailFills, these write a half only, as the system may do, direct ones up to
  // somewhere in a block: nobody must notice.
  void ShortenFills(const std::string& path_end, int64_t skip, int64_t count = 1) {
    const std::lock_guard lock(mutex_);
    short_fills_.push_back({path_end, skip, count});
  }
  // From now on, sparse files cannot be written past the page cache.
  void RefuseDirectFills() { refuses_direct_ = true; }
  // The file seems `bytes` long when it is opened from now on, and reads beyond that fail.
  void Truncate(const std::string& path_end, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    truncations_.push_back({path_end, bytes, /*hides_size=*/false});
  }
  // The same for files that are open: the size that they had when opened stays.
  void TruncateAfterOpen(const std::string& path_end, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    truncations_.push_back({path_end, bytes, /*hides_size=*/true});
  }
  // The byte at `offset` reads as itself xor `mask`.
  void ChangeByte(const std::string& path_end, uint64_t offset, uint8_t mask) {
    const std::lock_guard lock(mutex_);
    changes_.push_back({path_end, offset, mask});
  }
  // Every read waits this long first.
  void SetDelay(std::chrono::microseconds delay) { delay_us_ = delay.count(); }
  // Every direct write of sparse files waits this long first.
  void SetDirectDelay(std::chrono::microseconds delay) { direct_delay_us_ = delay.count(); }
  void ClearFaults() {
    const std::lock_guard lock(mutex_);
    failures_.clear();
    splits_.clear();
    truncations_.clear();
    changes_.clear();
    write_failures_.clear();
    fill_failures_.clear();
    short_fills_.clear();
    refuses_direct_ = false;
    delay_us_ = 0;
    direct_delay_us_ = 0;
  }

  int64_t num_reads() const { return num_reads_; }
  uint64_t bytes_read() const { return bytes_read_; }
  int64_t num_writes() const { return num_writes_; }
  // Of sparse files, written past the page cache and through it.
  uint64_t direct_bytes() const { return direct_bytes_; }
  uint64_t cached_bytes() const { return cached_bytes_; }

  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    return std::make_unique<File>(*this, base_.OpenForReading(path));
  }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  // Its path ends in "scratch" for those who choose files.
  std::unique_ptr<ScratchFile> CreateScratch(const std::string& folder) override {
    return std::make_unique<Scratch>(*this, base_.CreateScratch(folder));
  }
  // Of the real file system.
  std::unique_ptr<SparseFile> OpenSparse(const std::string& path, uint64_t bytes) override {
    return std::make_unique<Sparse>(*this, path, bytes);
  }

 private:
  struct Failure {
    std::string path_end;
    int64_t skip;
    int64_t count;
  };
  struct Truncation {
    std::string path_end;
    uint64_t bytes;
    bool hides_size;
  };
  struct Change {
    std::string path_end;
    uint64_t offset;
    uint8_t mask;
  };

  class File final : public ReadableFile {
   public:
    File(FaultyFileSystem& fs, std::unique_ptr<ReadableFile> base)
        : fs_(fs), base_(std::move(base)), size_(fs_.LimitOf(*base_, /*at_open=*/true)) {}
    void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
      fs_.Read(*base_, *base_, offset, dst, fs_.LimitOf(*base_, /*at_open=*/false));
    }
    uint64_t size() const override { return size_; }
    const std::string& path() const override { return base_->path(); }

   private:
    FaultyFileSystem& fs_;
    const std::unique_ptr<ReadableFile> base_;
    const uint64_t size_;
  };

  class Scratch final : public ScratchFile {
   public:
    Scratch(FaultyFileSystem& fs, std::unique_ptr<ScratchFile> base)
        : fs_(fs), base_(std::move(base)) {}
    void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
      fs_.Read(*this, *base_, offset, dst, UINT64_MAX);
    }
    uint64_t size() const override { return 0; }
    const std::string& path() const override { return path_; }
    void WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      ++fs_.num_writes_;
      if (fs_.IsNext(fs_.write_failures_, *this)) {
        throw Error(fs_.write_error_, path_ + ": cannot write it: injected");
      }
      base_->WriteAt(offset, bytes);
    }
    void Discard(uint64_t offset, uint64_t bytes) noexcept override {
      base_->Discard(offset, bytes);
    }

   private:
    FaultyFileSystem& fs_;
    const std::unique_ptr<ScratchFile> base_;
    const std::string path_ = "scratch";
  };

  class Sparse final : public SparseFile {
   public:
    Sparse(FaultyFileSystem& fs, const std::string& path, uint64_t bytes)
        : SparseFile(path, bytes), fs_(fs) {}

   protected:
    ssize_t Pwrite(ReadMode mode, const void* bytes, size_t count, off_t offset) override {
      const bool direct = mode == ReadMode::kDirect;
      int error = direct && fs_.refuses_direct_ ? EINVAL : 0;
      if (direct && error == 0 && fs_.direct_delay_us_ > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(fs_.direct_delay_us_));
      }
      if (error == 0 && fs_.IsNext(fs_.fill_failures_, *this)) error = fs_.fill_error_;
      if (error != 0) {
        errno = error;
        return -1;
      }
      const bool is_short = fs_.IsNext(fs_.short_fills_, *this);
      const size_t unit = direct ? DirectWriteAlignment() : 1;
      if (is_short && count >= 2 * unit) count = count / 2 / unit * unit;
      ssize_t written = SparseFile::Pwrite(mode, bytes, count, offset);
      if (is_short && direct && written > 100) written -= 100;
      if (written > 0) {
        (direct ? fs_.direct_bytes_ : fs_.cached_bytes_) += static_cast<uint64_t>(written);
      }
      return written;
    }

   private:
    FaultyFileSystem& fs_;
  };

  template <class File>
  static bool Chooses(const std::string& path_end, const File& file) {
    return std::string_view(file.path()).ends_with(path_end);
  }

  uint64_t LimitOf(const ReadableFile& file, bool at_open) {
    const std::lock_guard lock(mutex_);
    uint64_t limit = file.size();
    for (const Truncation& t : truncations_) {
      if (Chooses(t.path_end, file) && !(at_open && t.hides_size)) limit = std::min(limit, t.bytes);
    }
    return limit;
  }

  // Whether the next use of the file is one of those; counts it.
  template <class File>
  bool IsNext(std::vector<Failure>& failures, const File& file) {
    const std::lock_guard lock(mutex_);
    bool fails = false;
    for (Failure& f : failures) {
      if (!Chooses(f.path_end, file)) continue;
      if (f.skip > 0) {
        --f.skip;
      } else if (f.count > 0) {
        --f.count;
        fails = true;
      }
    }
    return fails;
  }

  // `named` is the file that faults are chosen for, `file` the one behind it.
  void Read(const ReadableFile& named, const ReadableFile& file, uint64_t offset,
            std::span<std::byte> dst, uint64_t limit) {
    ++num_reads_;
    if (const int64_t delay = delay_us_; delay > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    const bool fails = IsNext(failures_, named);
    bool splits = IsNext(splits_, named);
    // Through the real loop, so that messages are the real ones.
    const auto pread = [&](void* to, size_t bytes, off_t at) -> ssize_t {
      if (fails) {
        errno = EIO;
        return -1;
      }
      const uint64_t begin = std::min(static_cast<uint64_t>(at), limit);
      size_t count = std::min<uint64_t>(bytes, limit - begin);
      if (std::exchange(splits, false)) count = (count + 1) / 2;
      file.ReadAt(begin, {static_cast<std::byte*>(to), count});
      return static_cast<ssize_t>(count);
    };
    ReadFully(pread, named.path(), offset, dst);
    bytes_read_ += dst.size();

    const std::lock_guard lock(mutex_);
    for (const Change& c : changes_) {
      if (Chooses(c.path_end, named) && c.offset >= offset && c.offset - offset < dst.size()) {
        dst[c.offset - offset] ^= std::byte{c.mask};
      }
    }
  }

  FileSystem& base_;
  std::mutex mutex_;
  std::vector<Failure> failures_;
  std::vector<Failure> splits_;
  std::vector<Truncation> truncations_;
  std::vector<Change> changes_;
  std::vector<Failure> write_failures_;
  ErrorCode write_error_ = ErrorCode::kIo;
  std::vector<Failure> fill_failures_;
  std::vector<Failure> short_fills_;
  std::atomic<int> fill_error_ = EIO;
  std::atomic<bool> refuses_direct_ = false;
  std::atomic<int64_t> direct_delay_us_ = 0;
  std::atomic<uint64_t> direct_bytes_ = 0;
  std::atomic<uint64_t> cached_bytes_ = 0;
  std::atomic<int64_t> num_writes_ = 0;
  std::atomic<int64_t> delay_us_ = 0;
  std::atomic<int64_t> num_reads_ = 0;
  std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace deltafin
