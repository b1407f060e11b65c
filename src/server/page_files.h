// The files of the page, built into the program (src/server/page, embedded by CMake).
#pragma once

#include <span>
#include <string_view>

namespace deltafin {

struct PageFile {
  std::string_view name;
  std::string_view content_type;
  std::string_view tag;  // of the content, for If-None-Match
  std::string_view content;
};

std::span<const PageFile> PageFiles();

// The file at a path ("/" is index.html); nullptr when there is none.
const PageFile* FindPageFile(std::string_view path);

}  // namespace deltafin
