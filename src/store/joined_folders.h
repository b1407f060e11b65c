// A model whose shards lie in several folders, on several disks: seen as one folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"

namespace deltafin {

// Which of the folders has the file `name` that counts: the first whose file is complete (without a
// journal, or one that says that all is there), else the first that has one at all; empty: none.
std::optional<size_t> FolderWith(FileSystem& fs, const std::vector<std::string>& folders,
                                 const std::string& name);

// Throws Error(kNotFound) for one that is no folder: a mistyped one would be as good as empty.
void CheckShardFolders(const std::vector<std::string>& folders);

// The flags of deltafin setup that name them: "--dir DIR --also OTHER".
std::string FolderFlags(const std::string& dir, const std::vector<std::string>& others);

// Opens the files of `dir` from the folder of FolderWith, `dir` or one of `others`. Files of other
// folders are passed on to `base`, which must outlive this. Thread-safe.
class JoinedFolders final : public FileSystem {
 public:
  // Throws as CheckShardFolders.
  JoinedFolders(FileSystem& base, const std::string& dir, const std::vector<std::string>& others);

  std::unique_ptr<ReadableFile> OpenForReading(const std::string& path) override {
    return base_.OpenForReading(Find(path));
  }
  bool Exists(const std::string& path) override { return base_.Exists(Find(path)); }

 private:
  // `path` itself where no folder has it, so that messages name the place where it should be.
  std::string Find(const std::string& path) const;

  FileSystem& base_;
  std::vector<std::string> folders_;
};

}  // namespace deltafin
