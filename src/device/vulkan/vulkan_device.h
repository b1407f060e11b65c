// The GPU backend: products with weights that the GPU holds are computed there, everything else by
// another device on the host, with the same bits.
//
// Activations and states stay in host memory. Products are recorded as they are asked for, run
// while the host goes on, and are waited for before anything could see their results; so a lost GPU
// costs nothing but time: what was under way is computed again by the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/vulkan/gpu.h"
#include "device/vulkan/held_weights.h"
#include "device/weight_keeper.h"

namespace deltafin {

struct VulkanDeviceOptions {
  uint64_t spine_bytes = 0;   // of the GPU's memory, for weights with ordinary ids
  uint64_t expert_bytes = 0;  // for weights whose id says that they are an expert's
  std::function<void(const std::string&)> on_notice;  // a line for people; may be null
  // The GPU takes subnormals for zero: products that could meet one are the host's.
  bool flushes_subnormals = false;
};

class VulkanDevice final : public Device, public WeightKeeper {
 public:
  // `gpu` and `pool` must outlive it; `host` computes what the GPU does not.
  VulkanDevice(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool,
               VulkanDeviceOptions options);
  ~VulkanDevice() override;

  std::string Describe() const override;

  bool Holds(uint64_t id) const override;
  void SetOrigin(WeightOrigin* origin) override { origin_ = origin; }
  void SetExpertOrigin(WeightOrigin* origin) override { expert_origin_ = origin; }
  uint64_t held_bytes() const { return spine_.taken_bytes() + experts_.taken_bytes(); }
  bool is_lost() const { return is_lost_; }

  void* Allocate(size_t bytes) override;
  void Free(void* address) noexcept override;
  void ToHost(void* host_dst, const void* src, size_t bytes) override;
  void ToDevice(void* dst, const void* host_src, size_t bytes) override;
  void Copy(void* dst, const void* src, size_t bytes) override;
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

  void RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                  const float* host_bias, int64_t n, const RouterParams& params) override;
  void ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y, int64_t latent,
                 SituParams params) override;
  void CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                      int64_t top_k, int64_t dim) override;

 private:
  // A product that was recorded and whose result is not in host memory yet.
  struct Product {
    Matrix w;
    const float* x = nullptr;
    float* y = nullptr;
    int64_t y_stride = 0;
    int64_t n = 0;
    uint64_t y_offset = 0;  // in from_gpu_: [n, rows]
  };
  // Activations that were recorded to be copied to the GPU.
  struct Input {
    const float* x = nullptr;
    int64_t cols = 0;
    int64_t n = 0;
    bool is_plain = false;  // as MXFP4 reads them
    VkDeviceAddress address = 0;
  };
  // An expert that the GPU computes, and the hidden values of its positions.
  struct GpuExpert {
    const ExpertTask* task = nullptr;
    int64_t first_row = 0;  // of gate_ and up_
  };

  // The matrix in the GPU's memory, copied there if there is room; null when the host computes.
  // Throws Error when the GPU fails, as the next three do.
  const HeldMatrix* Place(const Matrix& w);
  // y = W x for n positions, without waiting for it.
  void Record(const Matrix& w, const HeldMatrix& held, const float* x, float* y, int64_t y_stride,
              int64_t n);
  VkDeviceAddress RecordInput(WeightFormat weights, const float* x, int64_t cols, int64_t n);
  // Whether the GPU has the host's bits for this product: no operand or sum can be subnormal.
  bool IsSafe(const HeldMatrix& held, const float* x, int64_t floats);
  // Hands over what was recorded, without waiting.
  void Kick();

  // All results are in host memory. Deals with a GPU that fails.
  void Settle();
  // The GPU is given up: what it was to compute is computed by the host. Throws Error when weights
  // cannot be read again.
  void Lose(const std::string& why);
  // A matrix without data, from where it was read first; `bytes` may hold it.
  Matrix ReadAgain(const Matrix& w, std::vector<std::byte>& bytes) const;
  void RunHostExperts(const float* z, float* y, int64_t latent, SituParams params);
  void HostMatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n);
  // Whether n rows of `width` from `begin` on, `stride` apart, wait for the GPU.
  bool IsPending(const float* begin, int64_t n, int64_t width, int64_t stride) const;
  void StoreResults();
  void ForgetRecords();
  void RunGpuExperts(const float* z, float* y, int64_t latent, SituParams params);

  // For operators of the host: its results may be needed.
  Device& Host() {
    Settle();
    return *host_;
  }

  Gpu& gpu_;
  std::unique_ptr<Device> host_;
  ThreadPool& pool_;
  const std::function<void(const std::string&)> on_notice_;
  const bool flushes_subnormals_;
  WeightOrigin* origin_ = nullptr;
  WeightOrigin* expert_origin_ = nullptr;
  WeightStaging staging_;
  HeldWeights spine_;
  HeldWeights experts_;
  GpuBuffer to_gpu_;         // activations, written by the host
  GpuBuffer inputs_of_gpu_;  // and where the GPU reads them, if that is elsewhere
  GpuBuffer from_gpu_;       // results
  uint64_t to_gpu_used_ = 0;
  uint64_t from_gpu_used_ = 0;
  std::optional<GpuCommands> commands_;  // being recorded
  uint64_t commands_bytes_ = 0;          // of weights that they read
  uint64_t last_ticket_ = 0;
  std::vector<Input> inputs_;
  const float* checked_x_ = nullptr;  // the last activations that IsSafe looked at
  int64_t checked_floats_ = 0;
  int checked_quantum_ = 0;
  std::vector<Product> products_;
  std::vector<GpuExpert> gpu_experts_;
  std::vector<ExpertTask> host_tasks_;
  std::vector<float> expert_inputs_;   // [rows, latent]
  std::vector<float> gate_;            // [rows, width]
  std::vector<float> up_;              // [rows, width]
  std::vector<float> expert_outputs_;  // [rows, latent]
  bool is_lost_ = false;
};

}  // namespace deltafin
