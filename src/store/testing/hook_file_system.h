// The real file system, where a test's own function sees every read and may fail, hold back or
// spoil it. For faults that can be told in advance there is io/testing_file_system.h.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "io/file.h"

namespace deltafin {

// Thread-safe. Must outlive the files that it opened.
class HookFileSystem final : public FileSystem {
 public:
  // Called after each successful read with what was read; may throw Error or change the bytes.
  // Several threads may be in it at a time.
  using Hook = std::function<void(const std::string& path, uint64_t offset, std::span<std::byte>)>;

  void set_hook(Hook hook) {
    auto shared = std::make_shared<const Hook>(std::move(hook));
    std::lock_guard lock(mu_);
    hook_ = std::move(shared);
  }

  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    return std::make_unique<File>(*this, RealFileSystem().OpenForReading(path));
  }
  bool Exists(const std::string& path) override { return RealFileSystem().Exists(path); }

 private:
  class File final : public ReadableFile {
   public:
    File(HookFileSystem& fs, std::unique_ptr<ReadableFile> file)
        : fs_(fs), file_(std::move(file)) {}
    void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
      file_->ReadAt(offset, dst);
      const std::shared_ptr<const Hook> hook = fs_.hook();
      if (hook != nullptr && *hook) (*hook)(file_->path(), offset, dst);
    }
    uint64_t size() const override { return file_->size(); }
    const std::string& path() const override { return file_->path(); }

   private:
    HookFileSystem& fs_;
    std::unique_ptr<ReadableFile> file_;
  };

  std::shared_ptr<const Hook> hook() {
    std::lock_guard lock(mu_);
    return hook_;
  }

  std::mutex mu_;
  std::shared_ptr<const Hook> hook_;
};

}  // namespace deltafin
