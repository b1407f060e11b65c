// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace deltafin {

// Replaces the file `path`: after a crash it holds the old text or the new one. Writes a temporary
// file beside it, syncs it and renames it. Throws Error(kIo), leaving the old file as it was.
void WriteFileAtomically(const std::string& path, std::string_view text);
// The same, of bytes that do not lie in one piece.
void WriteFileAtomically(const std::string& path,
                         std::span<const std::span<const std::byte>> parts);

// Creates a folder and those above it; one that is there is fine. Throws Error(kIo).
void MakeFolder(const std::string& path);

}  // namespace deltafin
