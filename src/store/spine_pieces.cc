#include "store/spine_pieces.h"

#include <algorithm>
#include <cmath>
#include <utility>

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
                               matrix.id,
                               m,
                               row,
                               rows,
                               matrix.offset + static_cast<uint64_t>(row) * matrix.row_bytes(),
                               static_cast<uint64_t>(rows) * matrix.row_bytes(),
                               matrix.file};
        const uint64_t buffer = ReadBufferBytes(piece.bytes);
        pieces_.push_back(piece);
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

SpinePieces SpinePieces::Joined(const std::vector<bool>& resident,
                                std::vector<size_t>* first) const {
  DF_CHECK(resident.size() == pieces_.size());
  SpinePieces joined = *this;
  joined.pieces_.clear();
  joined.begins_.clear();
  first->clear();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const SpinePiece& piece = pieces_[i];
    const bool goes_on =
        piece.first_row > 0 && resident[i - 1] && resident[i] && i - first->back() < kMostJoined;
    if (goes_on) {
      joined.pieces_.back().num_rows += piece.num_rows;
      joined.pieces_.back().bytes += piece.bytes;
      continue;
    }
    while (std::ssize(joined.begins_) <= piece.layer) joined.begins_.push_back(first->size());
    joined.pieces_.push_back(piece);
    first->push_back(i);
  }
  joined.begins_.push_back(first->size());
  return joined;
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

std::vector<size_t> SpinePieces::ResidentOrder() const {
  // The fractions of the first n multiples of the golden ratio are spread evenly for every n.
  constexpr double kGoldenRatio = 0.61803398874989485;
  std::vector<std::pair<double, size_t>> keys;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const double multiple = static_cast<double>(i) * kGoldenRatio;
    const double fraction = multiple - std::floor(multiple);
    keys.emplace_back(pieces_[i].id == SpineMatrix::kRouter ? -1 : fraction, i);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<size_t> order;
  order.reserve(keys.size());
  for (const auto& [key, i] : keys) order.push_back(i);
  return order;
}

}  // namespace deltafin
