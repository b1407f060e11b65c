#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "base/format.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/sparse_file.h"

namespace deltafin {
namespace {

// A name that nobody uses, for the moment until it is taken away.
std::string UnusedName(const std::string& folder) {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return JoinPath(folder, format("scratch.{}.{:016x}", ::getpid(), number));
}

class PosixScratchFile final : public ScratchFile {
 public:
  PosixScratchFile(const std::string& folder, const std::string& name)
      : path_(JoinPath(folder, "(scratch file)")),
        writer_(name, 0),
        reader_(RealFileSystem().OpenForReading(name)) {
    reader_->Descriptor(ReadMode::kDirect);  // which is opened by the name
    RemoveFile(name);
  }

  void ReadAt(uint64_t offset, std::span<std::byte> dst) const override {
    reader_->ReadAt(offset, dst);
  }
  void ReadDirect(uint64_t offset, std::span<std::byte> dst, size_t needed) const override {
    reader_->ReadDirect(offset, dst, needed);
  }
  int Descriptor(ReadMode mode) const override { return reader_->Descriptor(mode); }
  uint64_t size() const override { return 0; }
  const std::string& path() const override { return path_; }

  void WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    writer_.WriteAt(offset, bytes);
    // A direct read waits for what is not on the disk yet.
    writer_.StartWriteback(offset, bytes.size());
  }
  void Discard(uint64_t offset, uint64_t bytes) noexcept override {
    try {
      writer_.PunchHole(offset, bytes);
    } catch (const Error&) {
      // The room is used again, or given back at the end.
    }
  }

 private:
  const std::string path_;  // for people
  SparseFile writer_;
  std::unique_ptr<ReadableFile> reader_;
};

}  // namespace

std::unique_ptr<ScratchFile> FileSystem::CreateScratch(const std::string& folder) {
  MakeFolders(folder);
  const std::string name = UnusedName(folder);
  try {
    return std::make_unique<PosixScratchFile>(folder, name);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(name, ignored);
    throw;
  }
}

}  // namespace deltafin
