// Small checkpoints whose dimensions tell apart what Kimi K3's own dimensions hide.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "reference/checkpoint_writer.h"

namespace deltafin::reference {

struct OddCheckpoint {
  std::string name;
  CheckpointOptions options;

  // What GoogleTest prints of a parameter.
  friend std::ostream& operator<<(std::ostream& out, const OddCheckpoint& odd) {
    return out << odd.name;
  }
};

// Seeds are chosen so that no router decision in the first 40 tokens of RandomTokens is a near tie
// (checkpoint_writer_test.cc checks it).
std::vector<OddCheckpoint> OddCheckpoints();

constexpr int64_t kOddTokens = 40;

// The same for everyone: any id of the vocabulary, specials included.
std::vector<int32_t> RandomTokens(const CheckpointOptions& options, int64_t count);

// A folder under the system's temporary one that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace deltafin::reference
