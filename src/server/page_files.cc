#include "server/page_files.h"

namespace deltafin {

const PageFile* FindPageFile(std::string_view path) {
  if (!path.starts_with('/')) return nullptr;
  path.remove_prefix(1);
  if (path.empty()) path = "index.html";
  for (const PageFile& file : PageFiles()) {
    if (file.name == path) return &file;
  }
  return nullptr;
}

}  // namespace deltafin
