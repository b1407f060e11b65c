#include "store/spine_pieces.h"

#include <algorithm>

#include "base/check.h"
#include "io/read_queue.h"

namespace deltafin {
namespace {

constexpr uint64_t kLargestUsualBytes = uint64_t{8} << 20;
constexpr uint64_t kSmallestUsualBytes = uint64_t{64} << 10;
constexpr uint64_t kPiecesOfTheLargest = 16;

}  // namespace

bool IsUsedWhole(SpineMatrix id) { return id == SpineMatrix::kKvbProj; }

SpinePieces::SpinePieces(const SpineSource& source, uint64_t piece_bytes) {
  for (size_t layer = 0; layer < source.layers.size(); ++layer) {
    begins_.push_back(pieces_.size());
    const std::vector<StoredMatrix>& matrices = source.layers[layer].matrices;
    for (size_t m = 0; m < matrices.size(); ++m) {
      const StoredMatrix& matrix = matrices[m];
      const bool whole = IsUsedWhole(matrix.id);
      const auto fitting = static_cast<int64_t>(piece_bytes / matrix.row_bytes());
      const bool uncut = whole || matrix.id == SpineMatrix::kRouter;
      const int64_t step = uncut ? matrix.rows : std::max<int64_t>(1, fitting);
      for (int64_t row = 0; row < matrix.rows; row += step) {
        const int64_t rows = std::min(step, matrix.rows - row);
        const SpinePiece piece{static_cast<int64_t>(layer),
                               m,
                               row,
                               rows,
                               matrix.offset + static_cast<uint64_t>(row) * matrix.row_bytes(),
                               static_cast<uint64_t>(rows) * matrix.row_bytes(),
                               matrix.file};
        const uint64_t buffer = ReadBufferBytes(piece.bytes);
        pieces_.push_back(piece);
        is_whole_.push_back(whole);
        if (whole) {
          whole_bytes_ = std::max(whole_bytes_, buffer);
        } else {
          largest_ring_bytes_ = std::max(largest_ring_bytes_, buffer);
          total_ring_bytes_ += buffer;
        }
      }
    }
  }
  begins_.push_back(pieces_.size());
}

uint64_t SpinePieces::UsualPieceBytes(const SpineSource& source) {
  uint64_t largest = 0;
  for (const StoredLayer& layer : source.layers) {
    for (const StoredMatrix& matrix : layer.matrices) largest = std::max(largest, matrix.bytes());
  }
  return std::clamp(largest / kPiecesOfTheLargest, kSmallestUsualBytes, kLargestUsualBytes);
}

size_t SpinePieces::begin(int64_t layer, size_t matrix) const {
  const auto first = pieces_.begin() + static_cast<std::ptrdiff_t>(begin(layer));
  const auto last = pieces_.begin() + static_cast<std::ptrdiff_t>(begin(layer + 1));
  const auto it = std::partition_point(
      first, last, [&](const SpinePiece& piece) { return piece.matrix < matrix; });
  return static_cast<size_t>(it - pieces_.begin());
}

uint64_t SpinePieces::ResidentBytes(int64_t layer) const {
  uint64_t bytes = 0;
  for (size_t i = begin(layer); i < begin(layer + 1); ++i)
    bytes += ReadBufferBytes(pieces_[i].bytes);
  return bytes;
}

}  // namespace deltafin
