// The GPU backend: products with weights that the GPU holds are computed there, and operators on
// what is there already; everything else by another device on the host, with the same bits.
//
// Activations and states are in host memory, and what the GPU works on has a shadow in its own.
// Operators are recorded as they are asked for, run while the host goes on, and are waited for
// before the host could see a result; only then is anything changed in host memory. So a lost GPU
// costs nothing but time: what was under way is computed again by the host. What the host needs
// before that comes beside its memory, while the GPU goes on (vulkan_arrivals.cc).
//
// KDA states are too large to be brought to the host each time. They stay on the GPU until they are
// asked for; what was added to them since the host had them last is kept in host memory, and added
// to the host's by the host should the GPU be lost (vulkan_kept.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/vulkan/byte_set.h"
#include "device/vulkan/gpu.h"
#include "device/vulkan/gpu_arena.h"
#include "device/vulkan/gpu_heap.h"
#include "device/vulkan/held_weights.h"
#include "device/vulkan/host_slots.h"
#include "device/weight_keeper.h"

namespace deltafin {

// What the device takes of the GPU's memory besides weights and copies of the host's: vectors of
// the spine, and at most so much of scratch until the host waits.
inline constexpr uint64_t kMostGpuVectorBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMostGpuScratchBytes = uint64_t{1} << 30;

struct VulkanDeviceOptions {
  uint64_t spine_bytes = 0;   // of the GPU's memory, for weights with ordinary ids
  uint64_t expert_bytes = 0;  // for weights whose id says that they are an expert's
  std::function<void(const std::string&)> on_notice;  // a line for people; may be null
  // The GPU takes subnormals for zero: products that could meet one are computed in double
  // precision, or by the host.
  bool flushes_subnormals = false;
  // The GPU's double precision is right (self_test.h): it computes operators other than products.
  bool has_operators = false;
  // Of host memory, for what was added to states that stay on the GPU.
  uint64_t journal_bytes = uint64_t{64} << 20;
  // Of the GPU's memory, for parts of an attention that are to be merged.
  uint64_t span_bytes = uint64_t{128} << 20;
};

class VulkanDevice final : public Device, public WeightKeeper {
 public:
  // `gpu` and `pool` must outlive it; `host` computes what the GPU does not.
  VulkanDevice(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool,
               VulkanDeviceOptions options);
  ~VulkanDevice() override;

  std::string Describe() const override;

  bool Holds(uint64_t id) const override;
  void SetOrigin(WeightOrigin* origin) override;
  void SetExpertOrigin(WeightOrigin* origin) override { expert_origin_ = origin; }
  void SetConstant(std::span<const float> vectors) override;
  void SetSlots(std::byte* begin, uint64_t slot_bytes, int64_t count) override;
  uint64_t held_bytes() const { return spine_.taken_bytes() + experts_.taken_bytes(); }
  bool is_lost() const { return is_lost_; }
  const std::string& why_lost() const { return why_lost_; }
  // Whether the host got something because the GPU had no memory for it.
  bool lacked_memory() const { return lacked_memory_; }
  int64_t num_waits() const { return num_waits_; }  // of the host for results
  // Of host memory that was taken for what passes between the two.
  uint64_t staging_bytes() const { return to_gpu_.chunks_bytes() + from_gpu_.chunks_bytes(); }
  // Of weights that products read in slots of the host's so far.
  uint64_t in_place_bytes() const { return in_place_bytes_; }
  // Gives the host's device back, when all memory was freed; nothing else may be called then.
  std::unique_ptr<Device> TakeHost() { return std::move(host_); }

  void* Allocate(size_t bytes) override;
  void Free(void* address) noexcept override;
  void ToHost(void* host_dst, const void* src, size_t bytes) override;
  void ToDevice(void* dst, const void* host_src, size_t bytes) override;
  void Copy(void* dst, const void* src, size_t bytes) override;
  void Discard(const void* begin, size_t bytes) noexcept override;
  void Synchronize() override;
  bool ReadsHostPages() const override { return host_->ReadsHostPages(); }

  void MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) override;
  void Add(float* dst, const float* src, int64_t count) override;
  void RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
               int64_t stride, float eps) override;
  void ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                   int64_t num_snapshots, const float* prefix, const float* host_query, int64_t n,
                   int64_t dim, float eps) override;
  void SituGlu(float* out, const float* gate, const float* up, int64_t count,
               SituParams params) override;
  void SigmoidGate(float* y, const float* gate, int64_t count) override;

  void ShortConv(float* y, const float* x, const float* host_w, float* history, int64_t n,
                 int64_t channels) override;
  void L2Normalize(float* x, int64_t rows, int64_t dim, float scale) override;
  void KdaGates(float* f, float* beta, const float* host_a_log, const float* host_dt_bias,
                int64_t n, int64_t heads, int64_t dim, float lower_bound) override;
  void KdaRecurrence(float* out, float* state, const float* q, const float* k, const float* v,
                     const float* alpha, const float* beta, int64_t n, int64_t heads,
                     int64_t dim) override;
  void GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows, int64_t dim,
                    float eps) override;

  void MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first, int64_t n,
                 const MlaShape& shape) override;
  void MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                      const MlaShape& shape) override;
  void MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache, int64_t first,
                 int64_t n, const MlaShape& shape, float scale) override;
  void MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                      const MlaShape& shape) override;

  bool StartRouter(const float* logits, const float* host_bias, int64_t n,
                   const RouterParams& params) override;
  void RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                  const float* host_bias, int64_t n, const RouterParams& params) override;
  void StartExperts(const float* z, int64_t n, int64_t latent) override;
  void ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y, int64_t latent,
                 SituParams params) override;
  void CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                      int64_t top_k, int64_t dim) override;

 private:
  // Floats in host memory: n rows of `width`, `stride` apart.
  struct Rows {
    const float* data = nullptr;
    int64_t n = 1;
    int64_t width = 0;
    int64_t stride = 0;

    bool is_whole() const { return n == 1 || stride == width; }
    uint64_t begin() const { return reinterpret_cast<uintptr_t>(data); }
    uint64_t end() const { return begin() + static_cast<uint64_t>((n - 1) * stride + width) * 4; }
  };
  static Rows Whole(const float* data, int64_t count) { return {data, 1, count, count}; }
  using Operands = std::vector<Rows>;

  // Memory of the host's that was handed out, and the GPU's copy.
  struct Allocation {
    size_t bytes = 0;
    GpuHeap::Piece shadow;
  };
  struct DeviceRange {
    VkDeviceAddress begin = 0;
    uint64_t bytes = 0;
  };
  // Activations as products read them (shaders/lay_out.comp).
  struct LaidOut {
    DeviceRange values;
    DeviceRange quanta;
  };
  struct Input {
    Rows x;
    int64_t cols = 0;
    bool is_mxfp4 = false;
    LaidOut laid_out;
  };
  // A vector of the spine's. It outlives the call that it came with.
  struct HostVector {
    const float* data() const { return values; }
    const float* from = nullptr;  // where the caller had it
    const float* values = nullptr;
    std::shared_ptr<const std::vector<float>> owner;  // null: it stays where it is
    size_t bytes = 0;
  };
  struct KnownVector {
    std::shared_ptr<const std::vector<float>> owner;
    VkDeviceAddress address = 0;  // 0: the GPU has not got it yet
  };
  // A change of a value that stays on the GPU when the host waits, and what it takes to do the same
  // to the value that the host had last.
  struct KeptStep {
    Rows write;                // in one allocation
    std::optional<Rows> from;  // it was copied from there, which stays on the GPU too
    Operands inputs;
    std::vector<GpuArena::Piece> staged;  // the inputs, on their way to the host
    uint64_t ticket = 0;                  // of what sends them; 0: not handed over yet
    std::vector<float> values;            // and there, one after the other
    std::function<void(const float* values)> again;
  };
  // Values on their way to the host, which come while the GPU goes on with what was asked for
  // later.
  struct Arrival {
    Rows what;  // that they are, or were made of
    GpuArena::Piece piece;
    size_t floats = 0;
    uint64_t ticket = 0;
    std::shared_ptr<const std::vector<float>> values;  // null: not collected yet
  };
  // What ExpertMlp was asked for, to be asked of the host; the lists are its own.
  struct ExpertCall {
    std::vector<ExpertTask> tasks;
    std::vector<int32_t> rows;
    const float* z = nullptr;
    float* y = nullptr;
    int64_t latent = 0;
    SituParams params;
    bool is_in_place = false;  // the weights lie in slots of the host's
  };

  // ---- weights ----
  // The matrix in the GPU's memory, copied there if there is room; null when the host computes.
  const HeldMatrix* Place(const Matrix& w);
  // The quantum of activations (lane_layout.h) from which on the GPU's own arithmetic has the
  // host's bits.
  int LeastQuantum(const Matrix& w, const HeldMatrix& held) const;
  // Exponent of a product of floats from which on the GPU's own is right.
  int LeastProduct() const;
  // Whether they all have it.
  bool IsSafe(const Matrix& w, const HeldMatrix& held, const float* x, int64_t floats);
  // A matrix without data, from where it was read first; `bytes` may hold it.
  Matrix ReadAgain(const Matrix& w, std::vector<std::byte>& bytes) const;

  // ---- what is recorded ----
  // Whether a value is on the GPU and not on the host: then the next operator is the GPU's too.
  bool IsThere(const Operands& reads) const;
  // Calls `record` when the GPU can do it, and keeps `again` in case the GPU is lost. False: the
  // host must.
  bool OnGpu(const Operands& reads, const Operands& writes, const std::function<void()>& record,
             std::function<void()> again);
  // The same of an operator that also takes `step`, whose value may stay there.
  bool OnGpuKeeping(const Operands& reads, const Operands& writes, KeptStep step,
                    const std::function<void()>& record, std::function<void()> again);
  void OnHost(const Operands& reads, const Operands& writes, const std::function<void()>& run);
  // An operator of the GPU's where its operands are there, else of the host's.
  void Operator(const Operands& reads, const Rows& write, const std::function<void()>& record,
                const std::function<void()>& run);
  // Such an operator of shaders/elementwise.comp: y[i] from y[i] and other[i].
  void InPlace(const char* shader, float* y, const float* other, int64_t count,
               const std::function<void()>& run);
  // Gives the GPU what it reads; true: `writes` continues the columns that were written last.
  bool Prepare(const Operands& reads, const Operands& writes);
  void Wrote(const Operands& writes, bool more_columns);
  void WroteKept(KeptStep step);
  // The columns that were written last are all there will be.
  void CloseColumns();
  // The host changed it.
  void Changed(const Rows& rows);
  // Where its shadow is: made if there was none.
  const GpuBuffer& ShadowOf(const Rows& rows, uint64_t* offset);
  VkDeviceAddress AddressOf(const Rows& rows);
  VkDeviceAddress AddressOf(const float* data, int64_t count) {
    return AddressOf(Whole(data, count));
  }
  DeviceRange RangeOf(const Rows& rows);
  void Upload(const Rows& whole);
  // Something small, for what is recorded after an Order that names it.
  DeviceRange Constant(const void* from, size_t bytes);
  HostVector VectorOf(const float* from, int64_t count);
  // What has been at this address before is there already.
  VkDeviceAddress AddressOf(const HostVector& vector);
  // Parts what comes from what was recorded before if they touch the same memory.
  void Order(std::span<const DeviceRange> reads, std::span<const DeviceRange> writes,
             bool writes_are_apart = false);
  GpuCommands& Commands();
  // Products of the pieces of a matrix, which are one where they lie beside each other.
  void AddProduct(WeightFormat format, const ProductJob& job, uint64_t weight_bytes);
  void RecordProduct();
  // Whether what was recorded should be handed over before more is.
  bool IsWorthAKick();
  // Hands over what was recorded, without waiting.
  void Kick();
  void TryKick();  // deals with a GPU that fails
  // Hands over and waits for all of it. Throws GpuLost.
  void KickAndWait();
  // All results are in host memory, but for what stays on the GPU. Deals with a GPU that fails.
  void Settle();
  void SettleResults();
  void Forget();
  // Waits for these values and brings them to `to`; host memory and what the log has stay as they
  // are. False: they are in host memory.
  bool Fetch(const Rows& whole, void* to);
  // Waits for what was handed over with this ticket and before. Throws GpuLost.
  void WaitFor(uint64_t ticket);
  // After a wait. Where nothing is under way any more, or what is holds much memory and is waited
  // for, what has come is collected, and the memory of all that was on its way is free.
  void FreeStaged();
  void CopyToHost(uint64_t to, const std::byte* from, uint64_t bytes);
  // The inputs of steps that were handed over up to this ticket have come.
  void CollectInputs(uint64_t ticket);
  // Nothing stays on the GPU alone any more.
  void Checkpoint();
  void BringSomeKept();
  // The values that stay there are not needed any more. False: others depend on them, or it is not
  // all of them.
  bool DropKept(uint64_t begin, uint64_t end);
  uint64_t AllocationBegin(const Rows& rows) const {
    return std::prev(allocations_.upper_bound(rows.begin()))->first;
  }
  // The GPU is given up: what it was to compute is computed by the host. Throws Error when weights
  // cannot be read again; whoever asks for what was to be computed then gets an Error too.
  void Lose(const std::string& why);
  // Throws where one of them was never computed.
  void CheckComputed(const Operands& reads) const;

  // ---- products ----
  bool GpuMatMul(const Matrix& w, const HeldMatrix& held, const float* x, float* y,
                 int64_t y_stride, int64_t n);
  // Makes it part of the product that is to be recorded next; false: it is none.
  bool ContinueProduct(const Matrix& w, const HeldMatrix& held, const Rows& in, const Rows& out);
  void HostMatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n);
  LaidOut TakeLaidOut(int64_t n, int64_t cols);
  // To be named to Order before it is read.
  LaidOut LayOut(const Rows& x, VkDeviceAddress address, int64_t cols, bool is_mxfp4);
  void Norm(float* y, const float* x, const float* gate, const float* host_w, int64_t n,
            int64_t dim, int64_t stride, float eps);

  // ---- MLA ----
  // A latent cache as an operator that runs later needs it.
  struct CacheCopy {
    LatentCacheView view() const {
      LatentCacheView copy = cache;
      copy.pages = pages.data();
      return copy;
    }
    LatentCacheView cache;
    std::vector<void*> pages;
  };
  struct AttendCall {
    VkDeviceAddress result = 0;
    VkDeviceAddress queries = 0;
    VkDeviceAddress pages = 0;  // a list
    int64_t page_tokens = 0;
    CacheFormat format = CacheFormat::kF32;
    int64_t first = 0;
    int64_t n = 0;
    float scale = 0;
  };
  // Whether the GPU can work on it.
  bool MayHold(const LatentCacheView& cache, const MlaShape& shape) const;
  // The memory of tokens [begin, end), page by page.
  static Operands TokensOf(const LatentCacheView& cache, int64_t begin, int64_t end,
                           const MlaShape& shape);
  static CacheCopy CopyOf(const LatentCacheView& cache, int64_t tokens);
  void RecordAttend(const AttendCall& call, const MlaShape& shape);
  void RecordExpand(const Matrix& kv_b, const HeldMatrix& held, const Rows& in, const Rows& result,
                    int64_t n, const MlaShape& shape);
  std::function<Matrix(std::vector<std::byte>&)> Again(const Matrix& w) const;

  // ---- values that come while the GPU goes on ----
  // Copies to memory of the host's that it can write.
  void Send(VkDeviceAddress from, const GpuArena::Piece& to, size_t bytes);
  // Waits for them if they have not come; null: the GPU is lost.
  std::shared_ptr<const std::vector<float>> ValuesOf(Arrival& arrival);
  static void Collect(Arrival& arrival);
  // These rows are written: what was made of them is that no more.
  void DropCopies(const Rows& rows);

  // ---- experts ----
  bool PlaceExpert(const ExpertWeights& weights);
  // Sends it to the host, if that has not begun; false: it is too much, or not on the GPU alone.
  bool SendExpertsInput(const Rows& z);
  // The host's, from what was sent, while the GPU goes on with what it was given; what comes next
  // finds the results there. False: nothing was done.
  bool ExpertsApart(std::span<const ExpertTask> tasks, float* y, int64_t latent, SituParams params);
  // False: the host must compute them.
  bool GpuExperts(ExpertCall experts);
  void RecordExperts(const ExpertCall& call);
  void RunExperts(const ExpertCall& call);
  // Of GPUs that have products only: in two turns, the hidden values pass through the host.
  void ExpertsByProducts(std::span<const ExpertTask> tasks, const float* z, float* y,
                         int64_t latent, SituParams params);
  // A matrix that the GPU reads in a slot of the host's; nothing where it cannot.
  std::optional<HeldMatrix> InPlace(const Matrix& w) const;
  // With what guards the GPU's arithmetic.
  HeldMatrix GuardedInPlace(const Matrix& w);
  // As GpuCommands::Products and ExactProducts; `table` may be 0 for `job` alone.
  void RecordInPlace(const ProductJob& job, VkDeviceAddress table, uint32_t count, uint32_t most_n,
                     bool needs_exact);

  Gpu& gpu_;
  std::unique_ptr<Device> host_;
  ThreadPool& pool_;
  const std::function<void(const std::string&)> on_notice_;
  const bool flushes_subnormals_;
  const bool has_operators_;
  WeightOrigin* origin_ = nullptr;
  WeightOrigin* expert_origin_ = nullptr;
  WeightStaging staging_;
  HeldWeights spine_;
  HeldWeights experts_;
  HostSlots slots_;
  uint64_t in_place_bytes_ = 0;
  bool reads_slots_ = false;                    // what is recorded or under way does
  std::map<uint64_t, Allocation> allocations_;  // by address
  GpuArena to_gpu_;
  GpuArena from_gpu_;
  GpuArena scratch_;
  GpuArena vectors_;
  GpuHeap heap_;  // of the shadows
  ByteSet constants_;
  std::unordered_map<const float*, KnownVector> known_vectors_;
  std::optional<GpuCommands> commands_;  // being recorded
  // And to be recorded before anything else.
  struct NextProduct {
    WeightFormat format = WeightFormat::kF32;
    ProductJob job;
    VkDeviceAddress weights_end = 0;
    uint64_t joined_bytes = 0;  // by ContinueProduct, since the last piece that it left to OnGpu
  };
  std::optional<NextProduct> next_product_;
  uint64_t commands_bytes_ = 0;  // of weights that they read, again for every few positions
  uint64_t last_ticket_ = 0;
  bool is_settled_ = true;  // nothing is recorded or under way

  // Since everything was settled last:
  std::vector<std::function<void()>> log_;  // the same on the host
  std::vector<std::shared_ptr<ExpertCall>> expert_calls_;
  ByteSet pending_;              // host memory that operators under way write, and kept_
  ByteSet pending_reads_;        // and that they read
  ByteSet results_;              // what they write
  ByteSet discarded_;            // what they wrote, or the log will, that nobody needs
  std::optional<Rows> columns_;  // of a matrix that is written column by column
  std::vector<Input> inputs_;
  std::optional<Arrival> experts_input_;  // z
  std::optional<Arrival> picks_;          // ids, then weights
  uint64_t apart_bytes_ = 0;              // of host memory that the log has for ExpertsApart
  ByteSet read_;                          // of the GPU's memory, since the last barrier
  ByteSet written_;

  std::vector<KeptStep> window_steps_;
  // And before that, since the host had what stays on the GPU last:
  ByteSet kept_;  // host memory of which only the shadow is right
  std::vector<KeptStep> journal_;
  uint64_t journal_bytes_ = 0;
  const uint64_t most_journal_bytes_;
  const uint64_t span_bytes_;

  ByteSet valid_;                     // host memory whose shadow has the same values, or newer ones
  const float* checked_x_ = nullptr;  // the last activations that IsSafe looked at
  int64_t checked_floats_ = 0;
  WeightFormat checked_format_ = WeightFormat::kF32;
  int checked_quantum_ = 0;
  std::optional<DeviceBuffer> expert_values_;  // ExpertsByProducts
  bool host_has_experts_ = false;              // ExpertMlp left some to the host since StartExperts
  int64_t num_waits_ = 0;
  bool lacked_memory_ = false;
  bool is_lost_ = false;
  std::string why_lost_;
  ByteSet never_computed_;  // host memory whose values were lost with the GPU, since `why_never_`
  std::string why_never_;
};

}  // namespace deltafin
