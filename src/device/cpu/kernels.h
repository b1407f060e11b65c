// The kernels of one instruction set: what FastDevice calls. Single-threaded, no allocation.
//
// The kernels are templates over a register type (lanes_*.h), written once in *_impl.h, and
// compiled once per instruction set in kernels_*.cc with that set's flags. Those files, and this
// header which they include, must not call inline functions that baseline code calls too (the
// standard library's among them): the linker keeps one copy of each, and it could be the one this
// processor cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/matrix.h"

// Functions of the headers that the kernel files include: never a copy for the linker to choose
// from.
#define DF_LANE_FN static inline __attribute__((always_inline))

namespace deltafin {

inline constexpr int64_t kLanes = 16;            // docs/numerics.md
inline constexpr int64_t kMxGroup = 128;         // weights of a group, likewise
inline constexpr int64_t kMxBlock = 32;          // weights that share a scale
inline constexpr int64_t kPanelRows = 48;        // weight rows that are widened to fp32 together
inline constexpr int64_t kMaxPanelCols = 1024;   // ... and columns, at most (lanes_*.h)
inline constexpr int64_t kPanelPositions = 128;  // positions a panel serves before the next one
inline constexpr int64_t kSegmentTokens = 1024;  // docs/numerics.md, MlaAttend
inline constexpr int64_t kBlockTokens = 64;

// Row p starts at base + (index != nullptr ? index[p] : p) * stride.
template <class T>
struct RowsOf {
  T* base = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
};

// y[p][r] = W[r] . x[p] for a block of rows of one weight. `data` and `scales` start at the first
// row of the block; the rows of x are packed (pack_dense, or pack_mxfp4 for kMxfp4).
struct MatMulJob {
  WeightFormat format = WeightFormat::kBf16;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t n = 0;  // <= kPanelPositions
  RowsOf<const float> x;
  RowsOf<float> y;
};
// Floats of scratch that `matmul` needs.
inline constexpr int64_t kMatMulScratch =
    kPanelRows * (kMaxPanelCols + kMaxPanelCols / kMxGroup * kLanes + kPanelPositions * kLanes);

// Weight rows of an expert in one piece of work, and floats for what w1 and w3 make of them.
inline constexpr int64_t kExpertRows = 128;
inline constexpr int64_t kExpertScratch = 2 * kPanelPositions * kExpertRows;
// Floats between a packed row and the next one: 1 KiB and a line more than the row, which may be
// multiples of 4 KiB. What several positions have of the same columns would fight for the same sets
// of the L1 cache.
inline constexpr int64_t kPackedPadding = 17 * kLanes;

// The state of attention over a run of tokens, of one (position, head): the weighted sum o of
// `value_floats` floats in the order of the kernel's registers, then the maximum and the sum.
struct AttentionJob {
  const float* queries = nullptr;  // packed rows (pack_dense of latent_dim), one per head
  int64_t query_stride = 0;
  int64_t num_heads = 0;
  const void* const* pages = nullptr;
  int64_t page_tokens = 0;
  bool bf16_cache = false;
  int64_t first_token = 0;  // of the segment
  int64_t num_tokens = 0;   // of the segment, up to the position
  int64_t latent_dim = 0;
  int64_t kv_lora = 0;
  float scale = 1.0f;
  float* states = nullptr;  // [num_heads][AttentionStateFloats(kv_lora)]
};
__attribute__((always_inline)) constexpr int64_t RoundUpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
__attribute__((always_inline)) constexpr int64_t AttentionStateFloats(int64_t kv_lora) {
  return RoundUpTo(kv_lora, kLanes) + 16;
}
__attribute__((always_inline)) constexpr int64_t AttentionScratch(int64_t latent_dim,
                                                                  int64_t num_heads) {
  return kBlockTokens * RoundUpTo(latent_dim, kLanes) + num_heads * (kBlockTokens + 16);
}

// out[p][j] = sum over i of q[p][i] * W[i][j] for the rows i of one block of weights (kF32, kBf16,
// kInt8), i in order.
struct AbsorbJob {
  WeightFormat format = WeightFormat::kBf16;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t n = 0;
  RowsOf<const float> q;
  RowsOf<float> out;
};
inline constexpr int64_t kAbsorbPositions = 24;
__attribute__((always_inline)) constexpr int64_t AbsorbScratch(int64_t rows, int64_t cols) {
  return (rows + kAbsorbPositions) * RoundUpTo(cols, kLanes) + kAbsorbPositions * rows;
}

// One head of KdaRecurrence over n steps, `stride` floats apart.
struct KdaJob {
  float* out = nullptr;
  float* state = nullptr;  // [dim][dim]
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  int64_t n = 0;
  int64_t stride = 0;
  int64_t beta_stride = 0;
  int64_t dim = 0;
};

struct KernelTable {
  // Writes elements [begin, end) of a row of `cols` in the order in which `matmul` reads x; `src`
  // is element `begin`, a multiple of 128. The row has RoundUpTo(cols, 16) or RoundUpTo(cols, 128)
  // floats.
  void (*pack_dense)(float* row, const float* src, int64_t begin, int64_t end, int64_t cols);
  void (*pack_mxfp4)(float* row, const float* src, int64_t begin, int64_t end, int64_t cols);
  // Up to so many positions `matmul` reads the weights straight to registers, without scratch.
  int64_t stream_positions;
  // Whether a row of a multiple of 16 floats is packed as it stands.
  bool dense_is_packed;
  // Rough nanoseconds of a multiply-add of `matmul` at a few positions, for choosing pieces only.
  double fma_ns;
  void (*matmul)(const MatMulJob& job, float* scratch);

  void (*add)(float* dst, const float* src, int64_t count);
  void (*situ)(float* out, const float* gate, const float* up, int64_t count, float beta,
               float linear_beta);
  void (*sigmoid)(float* out, const float* x, int64_t count);
  void (*sigmoid_gate)(float* y, const float* gate, int64_t count);
  void (*rms_norm)(float* y, const float* x, const float* w, int64_t dim, float eps);
  void (*gated_rms_norm)(float* y, const float* gate, const float* w, int64_t dim, float eps);
  void (*l2_normalize)(float* x, int64_t dim, float scale);
  // At most 64 sources of `dim`.
  void (*residual_mix)(float* out, const float* const* sources, int64_t num_sources,
                       const float* query, int64_t dim, float eps);
  // out = sum of weights[j] * y[j], rows of `dim`.
  void (*combine)(float* out, const float* y, const float* weights, int64_t top_k, int64_t dim);

  // Channels [begin, end) of all n steps; the history is advanced.
  void (*short_conv)(float* y, const float* x, const float* w, float* history, int64_t n,
                     int64_t channels, int64_t begin, int64_t end);
  // One head of one step.
  void (*kda_gate)(float* f, const float* dt_bias, float a_log, int64_t dim, float lower_bound);
  void (*kda_recurrence)(const KdaJob& job);

  void (*to_bf16)(uint16_t* dst, const float* src, int64_t count);
  void (*absorb)(const AbsorbJob& job, float* scratch);
  void (*attend_segment)(const AttentionJob& job, float* scratch);
  // into = merge of `into` and the state that follows it.
  void (*attention_merge)(float* into, const float* next, int64_t kv_lora);
  void (*attention_finish)(float* out, const float* state, int64_t kv_lora);
};

#if defined(DELTAFIN_CPU_X86)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif
#if defined(DELTAFIN_CPU_NEON)
extern const KernelTable kNeonKernels;
#endif

}  // namespace deltafin
