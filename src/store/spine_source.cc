#include "store/spine_source.h"

#include "store/spine_reader.h"

namespace deltafin {

uint64_t SpineSource::LayerBytes(int64_t layer) const {
  const StoredLayer& stored = layers[static_cast<size_t>(layer)];
  uint64_t bytes = static_cast<uint64_t>(stored.num_scales) * sizeof(float);
  for (const StoredMatrix& matrix : stored.matrices) bytes += matrix.bytes();
  return bytes;
}

uint64_t SpineSource::TotalBytes() const {
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    bytes += LayerBytes(static_cast<int64_t>(layer));
  }
  return bytes;
}

SpineSource ReleasedSpine(const Checkpoint& checkpoint) {
  SpineSource source;
  for (int64_t layer = 0; layer <= checkpoint.config().num_layers; ++layer) {
    StoredLayer& stored = source.layers.emplace_back();
    for (const MatrixSpec& spec : LayoutOfSpine(checkpoint.config(), layer).matrices) {
      const Extent extent = checkpoint.Find(spec.tensor);
      StoredMatrix& matrix = stored.matrices.emplace_back();
      matrix.id = spec.id;
      matrix.rows = spec.tensor.shape.dims[0];
      matrix.cols = spec.tensor.shape.dims[1];
      matrix.file = &checkpoint.file(extent.shard);
      matrix.offset = extent.offset;
    }
  }
  return source;
}

}  // namespace deltafin
