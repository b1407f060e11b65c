// The operators over the kernels of one instruction set: threads, blocks and scratch memory. The
// arithmetic is in the kernels (kernels.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/host_device.h"
#include "device/cpu/kernels.h"
#include "device/cpu/thread_scratch.h"

namespace deltafin {

class FastDevice : public HostDevice {
 public:
  // `kernels` must run on this processor. Both must outlive the device.
  FastDevice(ThreadPool& pool, const KernelTable& kernels, std::string isa_name);

  std::string Describe() const override;

  // fast_dense.cc
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

  // fast_kda.cc
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

  // fast_mla.cc
  void MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first, int64_t n,
                 const MlaShape& shape) override;
  void MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                      const MlaShape& shape) override;
  void MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache, int64_t first,
                 int64_t n, const MlaShape& shape, float scale) override;
  void MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                      const MlaShape& shape) override;

  // fast_moe.cc
  void RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                  const float* host_bias, int64_t n, const RouterParams& params) override;
  void ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y, int64_t latent,
                 SituParams params) override;
  void CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                      int64_t top_k, int64_t dim) override;

 private:
  // Some positions of one expert, at most kPanelPositions: what the weights are read for once.
  struct ExpertPiece {
    const ExpertWeights* weights = nullptr;
    const int32_t* inputs = nullptr;   // rows of packed_
    const int32_t* outputs = nullptr;  // rows of y
    int64_t count = 0;
    int64_t first_hidden = 0;  // row of hidden_
  };
  // Some rows of w1 and w3, or of w2, of one piece.
  struct ExpertUnit {
    const ExpertPiece* piece = nullptr;
    int64_t first_row = 0;
  };

  // Runs body(begin, end) over `count` items of about `ns_per_item` each, in `unit`s, on as many
  // threads as pay for waking them.
  template <class Body>
  void Parallel(int64_t count, int64_t unit, double ns_per_item, const Body& body) {
    pool().ParallelFor(count, pool().Grain(count, unit, ns_per_item), body);
  }

  // A row of `cols` activations as the kernels for `format` read it.
  int64_t PackedFloats(WeightFormat format, int64_t cols) const;
  void PackRow(WeightFormat format, float* row, const float* src, int64_t begin, int64_t end,
               int64_t cols) const;
  // Whether such a row may be read where it lies.
  bool IsPacked(WeightFormat format, int64_t cols) const;
  // `n` rows, packed into packed_ where they must be.
  RowsOf<const float> PackRows(WeightFormat format, const float* x, int64_t n, int64_t cols);

  void MatMulBlock(const Matrix& w, const RowsOf<const float>& x, const RowsOf<float>& y,
                   int64_t n);
  // The distinct input rows of the tasks, packed; fills expert_inputs_ with their places.
  void GatherExpertInputs(std::span<const ExpertTask> tasks, const float* z, int64_t latent);
  void RunExperts(float* y, int64_t latent, int64_t hidden_rows, SituParams params);
  void RunExpertHidden(const ExpertUnit& unit, float* scratch, int64_t latent, SituParams params);
  void RunExpertOutput(const ExpertUnit& unit, float* scratch, float* y, int64_t latent);

  struct AttentionWave;
  int64_t WantedAttentionUnits() const;
  void AttendWave(const AttentionWave& wave);
  void MergeWave(const AttentionWave& wave);

  const KernelTable& kernels_;
  std::string isa_name_;
  ThreadScratch scratch_;
  GrowingBuffer packed_;  // activations in the order of the kernels
  GrowingBuffer hidden_;  // ExpertMlp: packed rows of the experts' inner activations
  GrowingBuffer states_;  // MlaAttend: one state per head and unit; RouterTopK: scores
  GrowingBuffer totals_;  // MlaAttend: merged states
  std::vector<int32_t> row_places_;
  std::vector<int32_t> gathered_rows_;
  std::vector<int32_t> expert_inputs_;
  std::vector<ExpertPiece> expert_pieces_;
  std::vector<ExpertUnit> expert_units_;
};

}  // namespace deltafin
