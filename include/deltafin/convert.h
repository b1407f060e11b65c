// Converts weights once, so that every later token reads less.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {

struct ConvertProgress {
  int64_t layers_done = 0;
  int64_t num_layers = 0;    // with the head
  uint64_t bytes_done = 0;   // of the bytes that this run reads
  uint64_t total_bytes = 0;  // likewise
};

struct ConvertOptions {
  std::string model_dir;
  std::vector<std::string> also_dirs;  // as EngineOptions
  int threads = 0;                     // 0: every processor this process may use
  // Called often; false stops with Error(kCancelled).
  std::function<bool(const ConvertProgress&)> progress = nullptr;
};

struct ConvertResult {
  std::string folder;  // of the converted files
  int64_t layers_written = 0;
  int64_t layers_kept = 0;  // were there
  uint64_t bytes = 0;       // of all files
};

// The spine as int8 rows with one scale each, in MODEL/.deltafin/spine-int8. The released files are
// only read. Layers that are there already are kept, so a run that was stopped, by whatever means,
// is continued by the next one with the same result. Throws Error: see error.h.
ConvertResult ConvertSpineToInt8(const ConvertOptions& options);

// Reads all converted files and compares their checksums. Throws Error(kNotFound) when there is no
// conversion, Error(kCorrupt) naming the file that is damaged.
ConvertResult VerifyInt8Spine(const ConvertOptions& options);

}  // namespace deltafin
