// The loop around pread, apart from the system call so that tests can stand in for the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace deltafin {

// As pread(2) on an open file: bytes read, 0 at the end of the file, -1 with errno.
using PreadFunction = std::function<ssize_t(void* dst, size_t bytes, off_t offset)>;

// Fills dst from `offset`: ReadableFile::ReadAt without the file. `path` is for messages.
void ReadFully(const PreadFunction& pread, const std::string& path, uint64_t offset,
               std::span<std::byte> dst);

}  // namespace deltafin
