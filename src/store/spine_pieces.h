// How the spine is cut into the pieces that are read at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/spine_source.h"

namespace deltafin {

// Whole rows of one matrix.
struct SpinePiece {
  int64_t layer = 0;
  SpineMatrix id = SpineMatrix::kQProj;
  size_t matrix = 0;  // index into the layer's matrices
  int64_t first_row = 0;
  int64_t num_rows = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  const ReadableFile* file = nullptr;
};

// True for the matrix that is used as a whole (kv_b, twice). It is one piece, however large; so is
// the router, which others may look at when it is resident.
bool IsUsedWhole(SpineMatrix id);

// All pieces in the order of the forward pass. Immutable.
class SpinePieces {
 public:
  // Pieces of at most `piece_bytes`, and of one row at least.
  SpinePieces(const SpineSource& source, uint64_t piece_bytes);

  // The same with neighbours in a matrix joined, up to kMostJoined of them, where both are
  // resident: they need no room in a ring, and longer pieces compute faster (docs/performance.md).
  // `first` gets for each new piece the first one that it is made of.
  SpinePieces Joined(const std::vector<bool>& resident, std::vector<size_t>* first) const;
  static constexpr size_t kMostJoined = 8;

  // Large enough for a disk to be at its best, small enough that many fit a small ring: 8 MiB for
  // the release, a sixteenth of the largest matrix for small models.
  static uint64_t UsualPieceBytes(const SpineSource& source);

  int64_t num_layers() const { return static_cast<int64_t>(begins_.size()) - 1; }  // with the top
  size_t size() const { return pieces_.size(); }
  const SpinePiece& operator[](size_t i) const { return pieces_[i]; }
  // The pieces of a layer are [begin(layer), begin(layer + 1)).
  size_t begin(int64_t layer) const { return begins_[static_cast<size_t>(layer)]; }
  // Of a matrix, by its index in the layer.
  size_t begin(int64_t layer, size_t matrix) const;
  bool IsWhole(size_t i) const { return IsUsedWhole(pieces_[i].id); }

  // All pieces in the order in which they should become resident as memory allows. Routers first,
  // which improve the guesses of what to read ahead; then every part of the pass alike: the disk
  // reads streamed pieces while resident ones compute.
  std::vector<size_t> ResidentOrder() const;
  // Of the buffer for the matrix that is used whole; 0 when there is none.
  uint64_t WholeBytes() const { return whole_bytes_; }
  // Of the largest piece in the ring, and of all of them, before any were joined.
  uint64_t LargestRingBytes() const { return largest_ring_bytes_; }
  uint64_t TotalRingBytes() const { return total_ring_bytes_; }

 private:
  std::vector<SpinePiece> pieces_;
  std::vector<size_t> begins_;  // [num_layers + 1]
  uint64_t whole_bytes_ = 0;
  uint64_t largest_ring_bytes_ = 0;
  uint64_t total_ring_bytes_ = 0;
};

}  // namespace deltafin
