// The operators in the readable form that defines their bits (docs/numerics.md): no vectors, no
// blocking. Every faster backend is compared with this one, bit by bit.
#pragma once

#include <span>
#include <string>

#include "device/cpu/host_device.h"

namespace deltafin {

class PlainDevice : public HostDevice {
 public:
  using HostDevice::HostDevice;

  std::string Describe() const override;

  // plain_dense.cc
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

  // plain_kda.cc
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

  // plain_mla.cc
  void MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first, int64_t n,
                 const MlaShape& shape) override;
  void MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                      const MlaShape& shape) override;
  void MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache, int64_t first,
                 int64_t n, const MlaShape& shape, float scale) override;
  void MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                      const MlaShape& shape) override;

  // plain_moe.cc
  void RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                  const float* host_bias, int64_t n, const RouterParams& params) override;
  void ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y, int64_t latent,
                 SituParams params) override;
  void CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                      int64_t top_k, int64_t dim) override;

 private:
  // body(i) for every i in [0, count), on all threads of the pool.
  template <class OneItem>
  void ForEach(int64_t count, int64_t grain, const OneItem& one) {
    pool().ParallelFor(count, grain, [&one](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) one(i);
    });
  }
};

}  // namespace deltafin
