#include "store/spine_store.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "io/hash.h"
#include "store/int8_spine.h"
#include "store/spine_pieces.h"
#include "store/spine_reader.h"
#include "store/spine_stream.h"

namespace deltafin {
namespace {

// The small things of a layer, which always stay in RAM.
struct LayerTables {
  SpineVectors vectors;
  AlignedBuffer<float> scales;  // of its int8 matrices
};

AlignedBuffer<float> ReadScales(const Checkpoint& checkpoint, const StoredLayer& layer) {
  AlignedBuffer<float> scales(static_cast<size_t>(layer.num_scales));
  if (scales.empty()) return scales;
  const auto bytes = std::as_writable_bytes(std::span(scales.data(), scales.size()));
  layer.scales_file->ReadAt(layer.scales_offset, bytes);
  if (const uint64_t hash = Xxh3(bytes); hash != layer.scales_hash) {
    throw DamagedInt8Spine(
        checkpoint.dir(), layer.scales_file->path(),
        format("its scales have the checksum {:016x}, expected {:016x}", hash, layer.scales_hash));
  }
  return scales;
}

// The pieces of the options, with resident neighbours joined.
struct SpineCut {
  SpineCut(const SpineSource& source, const SpineStoreOptions& options)
      : pieces(SpinePieces(source, options.piece_bytes).Joined(options.resident, &first)) {
    for (const size_t i : first) {
      resident.push_back(options.resident[i]);
      kept.push_back(!options.kept.empty() && options.kept[i]);
      copied.push_back(!options.copied.empty() && options.copied[i]);
    }
  }

  std::vector<size_t> first;
  SpinePieces pieces;
  std::vector<bool> resident;
  std::vector<bool> kept;
  std::vector<bool> copied;
};

class StreamedSpineStore final : public SpineStore, private WeightOrigin {
 public:
  StreamedSpineStore(const Checkpoint& checkpoint, SpineSource source, SpineCut cut,
                     ReadQueue& queue, const SpineStoreOptions& options)
      : checkpoint_(checkpoint),
        source_(std::move(source)),
        tables_(source_.layers.size()),
        verified_(source_.layers.size()),
        clock_(options.clock),
        kept_(std::move(cut.kept)),
        copied_(std::move(cut.copied)),
        keeper_(options.keeper),
        stream_(std::move(cut.pieces), std::move(cut.resident), options.ring_bytes, queue,
                options.clock) {
    for (size_t layer = 0; layer < verified_.size(); ++layer) {
      for (const StoredMatrix& matrix : source_.layers[layer].matrices) {
        verified_[layer].push_back(!matrix.hash);
      }
    }
    if (keeper_ != nullptr) keeper_->SetOrigin(this);
  }
  ~StreamedSpineStore() override {
    if (keeper_ != nullptr) keeper_->SetOrigin(nullptr);
  }

  std::unique_ptr<SpineLease> Acquire(int64_t layer) override;

  void ReadEmbeddings(std::span<const TokenId> tokens, float* out) override {
    ReadEmbeddingRows(checkpoint_, tokens, out);
    embedding_bytes_ += tokens.size() * EmbeddingRowBytes(checkpoint_.config());
  }

  void Preload(const std::function<bool()>& go_on) override { stream_.Preload(go_on); }

  SpineCounters counters() const override {
    return {stream_.layer_bytes() + table_bytes_, stream_.top_bytes(), embedding_bytes_};
  }

  const Matrix* ResidentRouter(int64_t layer) const override {
    const size_t m = MatrixIndex(layer, SpineMatrix::kRouter);
    const StoredMatrix& matrix = source_.layers[static_cast<size_t>(layer)].matrices[m];
    const size_t piece = stream_.pieces().begin(layer, m);
    const std::byte* data = stream_.IfLoaded(piece);
    const bool held = stream_.IsHeld(piece) && keeper_->Holds(IdOf(piece));
    if (data == nullptr && !held) return nullptr;
    if (!tables_[static_cast<size_t>(layer)]) return nullptr;
    router_ = {matrix.format, matrix.rows, matrix.cols, data, nullptr, IdOf(piece)};
    return &router_;
  }
  const float* ResidentVector(int64_t layer, SpineVector id) const override {
    const std::optional<LayerTables>& tables = tables_[static_cast<size_t>(layer)];
    return tables ? tables->vectors.Get(id) : nullptr;
  }

 private:
  class Lease;

  size_t MatrixIndex(int64_t layer, SpineMatrix id) const {
    const std::vector<StoredMatrix>& matrices = source_.layers[static_cast<size_t>(layer)].matrices;
    size_t m = 0;
    while (m < matrices.size() && matrices[m].id != id) ++m;
    DF_CHECK(m < matrices.size());
    return m;
  }

  // 0: the keeper has none of it.
  uint64_t IdOf(size_t piece) const {
    return keeper_ != nullptr && (kept_[piece] || copied_[piece]) ? piece + 1 : 0;
  }

  // Waits for piece i; without its data where the keeper holds it.
  Matrix Get(size_t i) {
    const SpinePiece& piece = stream_.pieces()[i];
    if (stream_.IsHeld(i)) {
      if (keeper_->Holds(IdOf(i))) return View(i, nullptr);
      stream_.DropHeld();  // it lost them all
    }
    const auto layer = static_cast<size_t>(piece.layer);
    const StoredMatrix& matrix = source_.layers[layer].matrices[piece.matrix];
    const std::span<const std::byte> bytes = stream_.Get(i);
    if (!verified_[layer][piece.matrix]) Verify(piece, matrix, bytes);
    return View(i, bytes.data());
  }

  Matrix View(size_t i, const std::byte* data) const {
    const SpinePiece& piece = stream_.pieces()[i];
    const auto layer = static_cast<size_t>(piece.layer);
    const StoredMatrix& matrix = source_.layers[layer].matrices[piece.matrix];
    Matrix view{matrix.format, piece.num_rows, matrix.cols, data, nullptr, IdOf(i)};
    if (matrix.format == WeightFormat::kInt8) {
      view.scales = reinterpret_cast<const std::byte*>(tables_[layer]->scales.data() +
                                                       matrix.first_scale + piece.first_row);
    }
    return view;
  }

  // Piece i was used. A matrix whose hash is not known to be right is read as a whole once more.
  void SetHeldIfKept(size_t i) {
    const SpinePiece& piece = stream_.pieces()[i];
    const uint64_t id = IdOf(i);
    if (id == 0 || stream_.IsHeld(i) || !keeper_->Holds(id)) return;
    if (verified_[static_cast<size_t>(piece.layer)][piece.matrix]) stream_.SetHeld(i);
  }

  Matrix ReadAgain(uint64_t id, std::vector<std::byte>& bytes) override {
    DF_CHECK(id >= 1 && id <= stream_.pieces().size());
    const SpinePiece& piece = stream_.pieces()[id - 1];
    bytes.resize(piece.bytes);
    piece.file->ReadAt(piece.offset, bytes);
    return View(id - 1, bytes.data());
  }

  // The pieces of a matrix come in order, so its hash grows with them.
  void Verify(const SpinePiece& piece, const StoredMatrix& matrix,
              std::span<const std::byte> bytes) {
    if (piece.first_row == 0) hash_.Restart();
    hash_.Update(bytes);
    if (piece.first_row + piece.num_rows < matrix.rows) return;
    if (const uint64_t hash = hash_.Digest(); hash != *matrix.hash) {
      throw DamagedInt8Spine(checkpoint_.dir(), matrix.file->path(),
                             format("matrix {} has the checksum {:016x}, expected {:016x}",
                                    piece.matrix, hash, *matrix.hash));
    }
    verified_[static_cast<size_t>(piece.layer)][piece.matrix] = true;
  }

  const Checkpoint& checkpoint_;
  const SpineSource source_;
  std::vector<std::optional<LayerTables>> tables_;  // made when first used
  std::vector<std::vector<bool>> verified_;         // [layer][matrix]
  Xxh3Stream hash_;
  bool is_leased_ = false;
  PhaseClock* const clock_;
  const std::vector<bool> kept_;  // of each piece
  const std::vector<bool> copied_;
  WeightKeeper* const keeper_;
  std::atomic<uint64_t> table_bytes_ = 0;
  std::atomic<uint64_t> embedding_bytes_ = 0;
  mutable Matrix router_;  // what ResidentRouter hands out
  SpineStream stream_;     // last: it reads from the source's files until it ends
};

class StreamedSpineStore::Lease final : public SpineLease {
 public:
  Lease(StreamedSpineStore& store, int64_t layer) : store_(store), layer_(layer) {
    store_.is_leased_ = true;
  }
  ~Lease() override {
    store_.stream_.Free();
    store_.stream_.FreeWhole();
    store_.is_leased_ = false;
  }

  const float* Vector(SpineVector id) override {
    return store_.tables_[static_cast<size_t>(layer_)]->vectors.Get(id);
  }

  using SpineLease::ForEachPiece;
  void ForEachPiece(SpineMatrix id, const Use& use,
                    const std::function<bool()>& meanwhile) override {
    const size_t matrix = store_.MatrixIndex(layer_, id);
    const size_t end = store_.stream_.pieces().begin(layer_, matrix + 1);
    bool has_more = true;  // to do meanwhile
    for (size_t i = store_.stream_.pieces().begin(layer_, matrix); i < end; ++i) {
      while (has_more && !store_.stream_.IsThere(i)) has_more = meanwhile();
      const Matrix rows = store_.Get(i);
      use(store_.stream_.pieces()[i].first_row, rows);
      store_.SetHeldIfKept(i);
      store_.stream_.Free();  // its room takes the next piece while the caller goes on
    }
  }

  bool IsKept(SpineMatrix id) const override {
    const size_t matrix = store_.MatrixIndex(layer_, id);
    const size_t end = store_.stream_.pieces().begin(layer_, matrix + 1);
    for (size_t i = store_.stream_.pieces().begin(layer_, matrix); i < end; ++i) {
      if (!store_.stream_.IsHeld(i) || !store_.keeper_->Holds(store_.IdOf(i))) return false;
    }
    return true;
  }

  Matrix Whole(SpineMatrix id) override {
    DF_CHECK(IsUsedWhole(id));
    const size_t matrix = store_.MatrixIndex(layer_, id);
    return store_.Get(store_.stream_.pieces().begin(layer_, matrix));
  }

 private:
  StreamedSpineStore& store_;
  const int64_t layer_;
};

std::unique_ptr<SpineLease> StreamedSpineStore::Acquire(int64_t layer) {
  DF_CHECK(!is_leased_);
  DF_CHECK(0 <= layer && layer < stream_.pieces().num_layers());
  stream_.Seek(stream_.pieces().begin(layer));
  std::optional<LayerTables>& tables = tables_[static_cast<size_t>(layer)];
  if (!tables) {
    const PhaseScope phase(clock_, Phase::kSpineWait);
    tables.emplace(
        LayerTables{SpineVectors(checkpoint_, LayoutOfSpine(checkpoint_.config(), layer)),
                    ReadScales(checkpoint_, source_.layers[static_cast<size_t>(layer)])});
    if (keeper_ != nullptr) keeper_->SetConstant(tables->vectors.all());
    table_bytes_ += tables->vectors.bytes_read() + tables->scales.size_bytes();
  }
  return std::make_unique<Lease>(*this, layer);
}

}  // namespace

std::unique_ptr<SpineStore> MakeSpineStore(const Checkpoint& checkpoint, SpineSource source,
                                           ReadQueue& queue, const SpineStoreOptions& options) {
  SpineCut cut(source, options);
  return std::make_unique<StreamedSpineStore>(checkpoint, std::move(source), std::move(cut), queue,
                                              options);
}

SpineStoreOptions AllResident(const SpineSource& source) {
  const uint64_t piece_bytes = SpinePieces::UsualPieceBytes(source);
  SpineStoreOptions options;
  options.piece_bytes = piece_bytes;
  options.resident.assign(SpinePieces(source, piece_bytes).size(), true);
  return options;
}

}  // namespace deltafin
