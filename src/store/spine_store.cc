#include "store/spine_store.h"

#include <array>
#include <optional>
#include <vector>

#include "base/check.h"
#include "store/aligned_bytes.h"
#include "store/spine_reader.h"

namespace deltafin {
namespace {

constexpr size_t kMatrixAlignment = 64;

// One layer in RAM: its matrices in one block, each at a multiple of 64 bytes, in order of use.
class ResidentLayer {
 public:
  ResidentLayer(const Checkpoint& checkpoint, const LayerLayout& layout)
      : vectors_(checkpoint, layout) {
    std::vector<Extent> extents;
    size_t total = 0;
    for (const MatrixSpec& spec : layout.matrices) {
      extents.push_back(checkpoint.Find(spec.tensor));
      total += Padded(extents.back().bytes);
    }
    memory_ = AllocateAligned(total, kMatrixAlignment);
    std::byte* next = memory_.get();
    for (size_t i = 0; i < extents.size(); ++i) {
      const Extent& extent = extents[i];
      checkpoint.file(extent.shard).ReadAt(extent.offset, {next, extent.bytes});
      matrices_[static_cast<size_t>(layout.matrices[i].id)] = ViewMatrix(layout.matrices[i], next);
      next += Padded(extent.bytes);
    }
  }

  const float* Vector(SpineVector id) const { return vectors_.Get(id); }
  const Matrix& Get(SpineMatrix id) const {
    const Matrix& matrix = matrices_[static_cast<size_t>(id)];
    DF_CHECK(matrix.data != nullptr);
    return matrix;
  }

 private:
  static size_t Padded(uint64_t bytes) {
    return (bytes + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
  }

  SpineVectors vectors_;
  AlignedBytes memory_;
  std::array<Matrix, static_cast<size_t>(SpineMatrix::kCount)> matrices_ = {};
};

class ResidentLease final : public SpineLease {
 public:
  ResidentLease(const ResidentLayer& layer, bool& is_leased)
      : layer_(layer), is_leased_(is_leased) {
    is_leased_ = true;
  }
  ~ResidentLease() override { is_leased_ = false; }

  const float* Vector(SpineVector id) override { return layer_.Vector(id); }
  void ForEachPiece(
      SpineMatrix id,
      const std::function<void(int64_t first_row, const Matrix& rows)>& use) override {
    use(0, layer_.Get(id));
  }
  Matrix Whole(SpineMatrix id) override { return layer_.Get(id); }

 private:
  const ResidentLayer& layer_;
  bool& is_leased_;
};

class ResidentSpineStore final : public SpineStore {
 public:
  explicit ResidentSpineStore(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), layers_(static_cast<size_t>(checkpoint.config().num_layers + 1)) {}

  std::unique_ptr<SpineLease> Acquire(int64_t layer) override {
    DF_CHECK(!is_leased_);
    DF_CHECK(0 <= layer && layer <= checkpoint_.config().num_layers);
    std::optional<ResidentLayer>& resident = layers_[static_cast<size_t>(layer)];
    if (!resident) resident.emplace(checkpoint_, LayoutOfSpine(checkpoint_.config(), layer));
    return std::make_unique<ResidentLease>(*resident, is_leased_);
  }

  void ReadEmbeddings(std::span<const TokenId> tokens, float* out) override {
    ReadEmbeddingRows(checkpoint_, tokens, out);
  }

  const Matrix* ResidentRouter(int64_t layer) const override {
    const std::optional<ResidentLayer>& resident = layers_[static_cast<size_t>(layer)];
    return resident ? &resident->Get(SpineMatrix::kRouter) : nullptr;
  }
  const float* ResidentVector(int64_t layer, SpineVector id) const override {
    const std::optional<ResidentLayer>& resident = layers_[static_cast<size_t>(layer)];
    return resident ? resident->Vector(id) : nullptr;
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::optional<ResidentLayer>> layers_;  // [num_layers + 1], the top last
  bool is_leased_ = false;
};

}  // namespace

std::unique_ptr<SpineStore> MakeResidentSpineStore(const Checkpoint& checkpoint) {
  return std::make_unique<ResidentSpineStore>(checkpoint);
}

}  // namespace deltafin
