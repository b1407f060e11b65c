#include "io/write_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/format.h"
#include "deltafin/error.h"
#include "io/read_loop.h"

namespace deltafin {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* what, int error) {
  throw Error(ErrorCode::kIo, format("{}: cannot {} it: {}", path, what, ReasonOf(error)));
}

bool WriteAll(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

// So that the new name survives a crash. Some file systems cannot sync folders: no matter.
void SyncFolder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace

void WriteFileAtomically(const std::string& path, std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  WriteFileAtomically(path, std::span(&bytes, 1));
}

void WriteFileAtomically(const std::string& path,
                         std::span<const std::span<const std::byte>> parts) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) Fail(path, "write", errno);
  // mkstemp makes files that only their owner may read.
  const bool written = ::fchmod(descriptor, 0644) == 0 &&
                       std::all_of(parts.begin(), parts.end(),
                                   [&](auto part) { return WriteAll(descriptor, part); }) &&
                       ::fsync(descriptor) == 0;
  int error = written ? 0 : errno;
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    Fail(path, "write", error);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  SyncFolder(folder.empty() ? "." : folder);
}

void MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kIo, format("{}: cannot create the folder: {}", path,
                                       error ? error.message() : "something else is there"));
  }
}

}  // namespace deltafin
