// Latent caches that are longer than their memory: the pages after the first ones of each sequence
// lie in a file without a name, and come back in the order in which the attention walks over them
// while it computes those before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "base/captured_error.h"
#include "base/page_memory.h"
#include "base/phase_clock.h"
#include "deltafin/types.h"
#include "device/device.h"
#include "io/file.h"
#include "io/read_queue.h"
#include "store/model_config.h"

namespace deltafin {

struct CacheSpillOptions {
  int64_t resident_pages = 0;   // of each MLA layer of a sequence: these stay in memory
  int64_t max_pass_tokens = 1;  // that one sequence gets in a pass
  int threads = 1;              // that compute
};

// Shared by the sequences of a model, of which one at a time is in use. Not thread-safe, but for
// the counter. Config, device, queue and clock must outlive it.
class CacheSpill final : public PageReader, private ReadListener {
 public:
  // Throws Error(kUnsupported) when the device does not read pages of the host's memory, and
  // Error(kOutOfMemory).
  CacheSpill(const ModelConfig& config, CacheFormat format, Device& device, ReadQueue& queue,
             std::unique_ptr<ScratchFile> file, const CacheSpillOptions& options,
             PhaseClock* clock = nullptr);
  ~CacheSpill() override;
  CacheSpill(const CacheSpill&) = delete;
  CacheSpill& operator=(const CacheSpill&) = delete;

  int64_t resident_pages() const { return options_.resident_pages; }
  // Memory for pages that a pass fills, the same for every layer. A sequence may swap one for one
  // of its own.
  std::vector<DeviceBuffer>& open_pages() { return open_pages_; }

  // A place in the file, for one page. All functions that touch the file throw Error(kIo), or
  // Error(kNoSpace) when the disk is full; both say that it was the latent cache.
  int64_t TakeSlot();
  void FreeSlots(std::vector<int64_t> slots) noexcept;
  // `page`: a device address.
  void Write(int64_t slot, const void* page);
  void Read(int64_t slot, std::span<std::byte> host_page);

  // What the next MlaAttend walks over: pages [first, end) of a cache come from slots[0], ..., and
  // their addresses are put into pages[first], ...
  struct Walk {
    std::span<const int64_t> slots;
    void** pages = nullptr;
    int64_t first = 0;
    int64_t end = 0;
  };
  void SetWalk(const Walk& walk);

  // Between two walks: a guess that the next one begins with these slots. Its first pages are read
  // to where they belong while nobody waits for them. A wrong guess costs the reads, and one that
  // fails is tried again.
  void ReadAhead(std::span<const int64_t> slots);

  // PageReader.
  void Begin(int64_t walks) override;
  int64_t max_tokens() const override { return max_tokens_; }
  void Provide(int64_t first, int64_t end) override;

  // From the file, since the start. Thread-safe.
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  // The size that the file has grown to.
  uint64_t file_bytes() const { return static_cast<uint64_t>(num_slots_) * slot_bytes_; }

  static uint64_t PageBytes(const ModelConfig& config, CacheFormat format);
  // Memory of the object.
  static uint64_t Bytes(const ModelConfig& config, CacheFormat format,
                        const CacheSpillOptions& options);

 private:
  // Of the ring into which pages are read.
  struct Place {
    bool busy = false;  // a read is under way
    std::optional<CapturedError> error;
  };

  void OnRead(uint64_t tag, std::span<const std::byte> data) noexcept override;
  void OnReadFailed(uint64_t tag, std::exception_ptr error) noexcept override;
  ReadRequest LoadInto(int64_t place, int64_t slot, ReadPriority priority);
  void Load(int64_t end);
  int64_t TakeAhead();
  void ForgetAhead(std::span<const int64_t> slots) noexcept;
  std::byte* WaitFor(int64_t load);
  void Drain() noexcept;
  std::byte* PlaceBytes(int64_t place) const { return ring_.data() + place * place_bytes_; }

  static int64_t WindowPages(const CacheSpillOptions& options);

  ReadQueue& queue_;
  const std::unique_ptr<ScratchFile> file_;
  const CacheSpillOptions options_;
  PhaseClock* const clock_;
  const uint64_t page_bytes_;
  const uint64_t slot_bytes_;
  const int64_t max_tokens_;
  std::vector<DeviceBuffer> open_pages_;

  int64_t num_slots_ = 0;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free_slots_;

  // Page first + k % (end - first) is load k, and goes to place k % places_.size().
  Walk walk_;
  int64_t num_loads_ = 0;  // of all walks; each page once where the ring holds all of them
  int64_t started_ = 0;    // loads
  int64_t walks_begun_ = 0;
  size_t place_bytes_;
  PageBuffer ring_;
  std::vector<int64_t> ahead_;  // slots that ReadAhead began to read, into the first places

  std::mutex mutex_;  // of places_
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace deltafin
