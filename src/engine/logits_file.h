// Raw little-endian float32 [rows, vocab_size]: what `run --logits` and `quality --logits` write.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/write_file.h"

namespace deltafin {

// Rows in order, into a file that is there when Commit was called and else is gone.
class LogitsWriter {
 public:
  // Throws Error(kIo).
  LogitsWriter(const std::string& path, int64_t rows, int64_t vocab_size);
  void Add(std::span<const float> row);
  void Commit();

 private:
  NewFile file_;
  uint64_t at_ = 0;
};

class LogitsReader {
 public:
  // Throws Error(kNotFound), Error(kIo), and Error(kInvalidArgument) when it has another size.
  LogitsReader(const std::string& path, int64_t rows, int64_t vocab_size);
  // Valid until the next call. Throws Error(kCorrupt) for what is no finite number.
  std::span<const float> Row(int64_t row);

 private:
  std::unique_ptr<ReadableFile> file_;
  std::vector<float> row_;
};

}  // namespace deltafin
