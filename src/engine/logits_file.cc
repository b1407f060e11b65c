#include "engine/logits_file.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {

static_assert(std::endian::native == std::endian::little);

LogitsWriter::LogitsWriter(const std::string& path, int64_t rows, int64_t vocab_size)
    : file_(path, static_cast<uint64_t>(rows * vocab_size) * sizeof(float)) {}

void LogitsWriter::Add(std::span<const float> row) {
  file_.WriteAt(at_, std::as_bytes(row));
  at_ += row.size_bytes();
}

void LogitsWriter::Commit() { file_.Commit(); }

LogitsReader::LogitsReader(const std::string& path, int64_t rows, int64_t vocab_size)
    : file_(RealFileSystem().OpenForReading(path)), row_(static_cast<size_t>(vocab_size)) {
  const uint64_t expected = static_cast<uint64_t>(rows) * row_.size() * sizeof(float);
  if (file_->size() == expected) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      format("{}: expected logits of the {} tokens of the text, {} float32 each ({} bytes), "
             "got {} bytes",
             path, rows, vocab_size, expected, file_->size()));
}

std::span<const float> LogitsReader::Row(int64_t row) {
  file_->ReadAt(static_cast<uint64_t>(row) * row_.size() * sizeof(float),
                std::as_writable_bytes(std::span(row_)));
  if (std::all_of(row_.begin(), row_.end(), [](float logit) { return std::isfinite(logit); })) {
    return row_;
  }
  throw Error(ErrorCode::kCorrupt,
              format("{}: a logit of token {} is no finite number", file_->path(), row));
}

}  // namespace deltafin
