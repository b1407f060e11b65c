// A model whose shards lie in several folders, on several disks: seen as one folder.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"

namespace deltafin {

// Opens what is not in `dir` from the first of `others` that has a file of that name. Files of
// other folders are passed on to `base`, which must outlive this. Thread-safe.
class JoinedFolders final : public FileSystem {
 public:
  JoinedFolders(FileSystem& base, std::string dir, std::vector<std::string> others)
      : base_(base), dir_(std::move(dir)), others_(std::move(others)) {}

  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    return base_.OpenForReading(Find(path));
  }
  bool Exists(const std::string& path) override { return base_.Exists(Find(path)); }

 private:
  // `path` itself where no folder has it, so that messages name the place where it should be.
  std::string Find(const std::string& path) const;

  FileSystem& base_;
  const std::string dir_;
  const std::vector<std::string> others_;
};

}  // namespace deltafin
