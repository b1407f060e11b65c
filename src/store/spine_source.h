// Where the matrices of a spine lie: in the released shards, or in the files of a conversion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/matrix.h"
#include "io/file.h"
#include "store/checkpoint.h"
#include "store/layout.h"

namespace deltafin {

// A matrix as a file holds it: rows one after the other.
struct StoredMatrix {
  SpineMatrix id = SpineMatrix::kQProj;
  WeightFormat format = WeightFormat::kBf16;  // or kInt8
  int64_t rows = 0;
  int64_t cols = 0;
  const ReadableFile* file = nullptr;
  uint64_t offset = 0;           // of row 0
  int64_t first_scale = 0;       // kInt8: index of row 0's scale in the layer's scales
  std::optional<uint64_t> hash;  // XXH3 of all rows, where it is known

  uint64_t row_bytes() const {
    return static_cast<uint64_t>(Matrix{format, rows, cols, nullptr, nullptr}.row_bytes());
  }
  uint64_t bytes() const { return static_cast<uint64_t>(rows) * row_bytes(); }
};

struct StoredLayer {
  std::vector<StoredMatrix> matrices;  // in order of use
  // The scales of its int8 matrices, floats in the order of the matrices.
  const ReadableFile* scales_file = nullptr;
  uint64_t scales_offset = 0;
  int64_t num_scales = 0;
  uint64_t scales_hash = 0;  // XXH3
};

struct SpineSource {
  std::vector<StoredLayer> layers;  // [num_layers + 1], the top last
  // Files that are not the checkpoint's.
  std::vector<std::unique_ptr<ReadableFile>> files;
  WeightFormat format = WeightFormat::kBf16;  // what the large matrices are; kBf16: as released

  uint64_t LayerBytes(int64_t layer) const;  // with scales
  uint64_t TotalBytes() const;
};

// The spine of the shards. `checkpoint` must outlive it.
SpineSource ReleasedSpine(const Checkpoint& checkpoint);

}  // namespace deltafin
