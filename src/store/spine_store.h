// The spine: all weights but the routed experts, handed out layer by layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/phase_clock.h"
#include "deltafin/types.h"
#include "device/matrix.h"
#include "device/weight_keeper.h"
#include "io/read_queue.h"
#include "store/checkpoint.h"
#include "store/spine_source.h"

namespace deltafin {

// One layer's spine (or the top's: final norm and head), held in RAM as far as the store chose to.
// Use the matrices in the order of SpineMatrix, each once per lease: a streaming store reads ahead
// in that order. Everything a lease hands out is valid until the lease ends, except pieces. Not
// thread-safe.
class SpineLease {
 public:
  virtual ~SpineLease() = default;
  // fp32, host.
  virtual const float* Vector(SpineVector id) = 0;
  // Calls use(first_row, rows) for consecutive row ranges that cover the matrix, waiting for each
  // to arrive. The view is valid during the call only. Before it waits for one that is not there,
  // it calls `meanwhile` (which must not use the store) until that returns false, which ends it for
  // this matrix, or the piece has come. Throws Error when a read fails.
  using Use = std::function<void(int64_t first_row, const Matrix& rows)>;
  virtual void ForEachPiece(SpineMatrix id, const Use& use,
                            const std::function<bool()>& meanwhile) = 0;
  void ForEachPiece(SpineMatrix id, const Use& use) {
    ForEachPiece(id, use, [] { return false; });
  }
  // True: a keeper has all of the matrix; to use it takes no read and no wait.
  virtual bool IsKept(SpineMatrix id) const = 0;
  // The whole matrix at once. Only for kKvbProj, which is used twice. Throws Error when a read
  // fails.
  virtual Matrix Whole(SpineMatrix id) = 0;
};

// Read so far, scales and small tensors included.
struct SpineCounters {
  uint64_t layer_bytes = 0;
  uint64_t head_bytes = 0;
  uint64_t embedding_bytes = 0;
};

// Thread-safe: one thread takes leases. At most one lease at a time.
class SpineStore {
 public:
  virtual ~SpineStore() = default;
  // Layer 0 .. num_layers - 1, or num_layers for the top; in this order, or slower. Throws Error
  // when a read fails: the store can then be asked again, for any layer.
  virtual std::unique_ptr<SpineLease> Acquire(int64_t layer) = 0;
  // The rows of the embedding, widened: out is host [tokens.size(), hidden_size].
  virtual void ReadEmbeddings(std::span<const TokenId> tokens, float* out) = 0;

  // Reads what stays in RAM now instead of at its first use. `go_on` is asked now and then; false
  // ends it early. Throws Error when a read fails.
  virtual void Preload(const std::function<bool()>& /*go_on*/) {}

  // Thread-safe.
  virtual SpineCounters counters() const { return {}; }

  // The router of an MoE layer, and a small tensor of any layer, to guess what the layer will pick
  // before it is its turn; valid until the next call of the store. Null when they are neither in
  // RAM nor held by the keeper: never reads.
  virtual const Matrix* ResidentRouter(int64_t) const { return nullptr; }
  virtual const float* ResidentVector(int64_t, SpineVector) const { return nullptr; }
};

struct SpineStoreOptions {
  uint64_t piece_bytes = 0;  // cuts the spine into pieces (SpinePieces)
  // Of each piece: kept in RAM after its first use. Neighbours are read and handed out together.
  std::vector<bool> resident;
  uint64_t ring_bytes = 0;      // for the others; at least SpinePieces::LargestRingBytes
  PhaseClock* clock = nullptr;  // hears of waits
  // Of each piece: has an id, and is not read again while `keeper` holds it. Never a resident or a
  // whole one. Empty: none.
  std::vector<bool> kept = {};
  // Of each piece: has an id and is in RAM or read as ever, but the keeper may have a copy. Only
  // those that are used whole. Empty: none.
  std::vector<bool> copied = {};
  WeightKeeper* keeper = nullptr;  // must outlive the store
};

// Small tensors stay in RAM, and of the matrices what the options say; the same bits whatever they
// say. Matrices whose hash the source knows are checked when they are first used: Error(kCorrupt).
// Checkpoint and queue must outlive the store.
std::unique_ptr<SpineStore> MakeSpineStore(const Checkpoint& checkpoint, SpineSource source,
                                           ReadQueue& queue, const SpineStoreOptions& options);

// Every piece resident.
SpineStoreOptions AllResident(const SpineSource& source);

}  // namespace deltafin
