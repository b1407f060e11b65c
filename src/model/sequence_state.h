// What a sequence carries from one token to the next: KDA states, convolution histories and the
// latent cache of the MLA layers (spec section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "deltafin/types.h"
#include "device/device.h"
#include "store/model_config.h"

namespace deltafin {

class CacheSpill;
class StateCapture;

// Tokens of latent cache that are allocated at a time.
inline constexpr int64_t kCachePageTokens = 256;
static_assert(kCachePageTokens % kAttentionBlock == 0);

// Owns device memory; grows by pages, never copies old ones. With `spill` the first pages of each
// layer and the last one are in memory, the others in a file; everything below may then throw the
// errors of CacheSpill's functions. Not thread-safe. `config`, `device` and `spill` must outlive
// it.
class SequenceState {
 public:
  SequenceState(const ModelConfig& config, Device& device, CacheFormat format,
                CacheSpill* spill = nullptr);
  ~SequenceState();
  SequenceState(SequenceState&&) = default;

  int64_t num_tokens() const { return num_tokens_; }
  CacheFormat cache_format() const { return format_; }

  // Makes room in the latent caches for `num_tokens` in total. Throws Error(kOutOfMemory).
  void Reserve(int64_t num_tokens);
  // The pass that just ended added n tokens.
  void Advance(int64_t n) { num_tokens_ += n; }
  // Forgets the latent caches' tokens from `num_tokens` on. What KDA layers hold is the caller's to
  // set (model/rollback.h).
  void Truncate(int64_t num_tokens);
  // Back to an empty sequence. Pages are kept.
  void Clear();

  // KDA layers: [heads, key, value].
  float* kda_state(int64_t layer) const { return layers_[layer].kda.floats(); }
  // KDA layers: history of q (0), k (1) or v (2), [3, channels], oldest first.
  float* conv_history(int64_t layer, int which) const;
  // MLA layers: the cache, with the pages of tokens [first, first + count) in memory to be written.
  // What comes before is there, or comes when the attention asks for it; nothing comes after.
  LatentCacheView BeginAppend(int64_t layer, int64_t first, int64_t count);
  // They were written, and the attention has used them. Before anything else is done with `layer`
  // or, with spilling, with another layer or sequence; after an error the state is undefined.
  void EndAppend(int64_t layer, int64_t first, int64_t count);
  // The next BeginAppend will probably be that of `layer`, and with `first`: with spilling, begins
  // to read what it needs.
  void ReadAhead(int64_t layer, int64_t first) const;

  // The whole state as host bytes, and back. A saved state fits any sequence of the same model and
  // cache format, on any device.
  std::vector<std::byte> Save(const StateCapture* capture = nullptr) const;
  // Throws Error(kInvalidArgument) when `saved` is not such a state.
  void Restore(std::span<const std::byte> saved);
  // The same bytes one after the other, in pieces: for states that must not be in
  // memory twice. With `capture`, of a pass since which nothing was taken back, the state there.
  uint64_t SavedBytes(const StateCapture* capture = nullptr) const;
  void SaveTo(const std::function<void(std::span<const std::byte>)>& write,
              const StateCapture* capture = nullptr) const;
  // `read` fills a span with the next bytes of the `bytes` that were saved. A `read` that throws
  // leaves the state undefined.
  void RestoreFrom(uint64_t bytes, const std::function<void(std::span<std::byte>)>& read);

  // Bytes of device memory for `num_tokens` tokens of context, of which as many pages of each layer
  // as `resident_pages` says, and one, are in memory.
  static uint64_t Bytes(const ModelConfig& config, CacheFormat format, int64_t num_tokens,
                        int64_t resident_pages = std::numeric_limits<int64_t>::max());
  uint64_t MemoryBytes() const;  // of this state as it is
  // Of these, one KDA layer's state and its three convolution histories.
  static size_t KdaBytes(const ModelConfig& config);
  static size_t ConvBytes(const ModelConfig& config);

 private:
  static constexpr int64_t kNone = -1;
  struct Layer {
    DeviceBuffer kda;
    DeviceBuffer conv;
    std::vector<DeviceBuffer> pages;    // that stay in memory: the first ones
    std::vector<void*> page_addresses;  // of all
    // Pages after those: where each lies in the file, or kNone. The last one that was written to is
    // in memory instead, whatever its slot holds.
    std::vector<int64_t> slots;
    DeviceBuffer tail;
    int64_t tail_page = kNone;
  };
  struct SavedHeader;
  // A piece of the state.
  struct Part {
    int64_t layer = 0;
    void* address = nullptr;  // null: a page that is not in memory
    size_t bytes = 0;
    int64_t page = 0;
  };
  // Calls visit(part) for all of the state of `num_tokens` tokens, in a fixed order.
  template <class Visit>
  void VisitParts(int64_t num_tokens, Visit&& visit) const;
  int64_t resident_pages() const;
  // The end of the pages that a pass from token `first` on finds in the file.
  int64_t FilePagesEnd(const Layer& layer, int64_t first) const;
  int64_t SlotOf(const Layer& layer, int64_t page) const;
  void WritePage(Layer& layer, int64_t page, const void* bytes);
  void ForgetSpilledFrom(int64_t page);

  uint64_t SavedBytesOf(int64_t num_tokens) const;
  int64_t token_bytes() const;  // of one layer's latent cache
  size_t kda_bytes() const;
  size_t conv_bytes() const;

  const ModelConfig& config_;
  Device& device_;
  CacheFormat format_;
  CacheSpill* spill_;
  int64_t num_tokens_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace deltafin
