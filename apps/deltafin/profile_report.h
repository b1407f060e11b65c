// --profile: where the time and the bytes of each pass went.
#pragma once

#include <string>
#include <vector>

#include "deltafin/engine.h"
#include "deltafin/json.h"

namespace deltafin {

// Collects what each pass took, and prints a table or makes JSON of it.
class ProfileReport {
 public:
  // `memory_bytes_per_second` as measured before the model was opened; 0: not.
  ProfileReport(const Engine& engine, double memory_bytes_per_second);

  // What came since the last row (or the beginning) is one, if a pass did.
  void EndRow(const std::string& name);

  void Print() const;  // on stderr
  Json ToJson() const;

 private:
  struct Row {
    std::string name;
    EngineCounters counters;
    ExpertStoreCounters experts;
  };
  Row Total() const;
  double MemoryBytesPerSecond(const Row& row) const;

  const Engine& engine_;
  const double memory_limit_;
  Row last_;
  std::vector<Row> rows_;
};

}  // namespace deltafin
