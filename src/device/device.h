// The operators of Kimi K3: everything that the forward pass asks of a backend.
//
// Shapes: n positions; activations are fp32, row-major, rows contiguous unless a stride is named.
// Pointers to activations are *device addresses* got from Allocate (arithmetic on them is fine,
// only the device dereferences them); pointers named host_* and all weights are host memory. In
// place: an output may be the same pointer as an input only where the comment says so. Numerics:
// docs/numerics.md defines the order of operations of every operator. The result for one position
// never depends on n, on the other positions, or on how many threads there are. Threads: one caller
// at a time. Errors: allocation throws Error(kOutOfMemory); operators do not fail on a CPU
// (but for a PageReader that does), and throw Error on a device that was lost. Shapes are the
// caller's duty (DF_CHECK). Operators may run asynchronously; ToHost and RouterTopK wait for what
// they read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "deltafin/types.h"
#include "device/matrix.h"

namespace deltafin {

// The experts that one submission computes: expert `weights` for `num_rows` positions.
// Row i reads input row in_rows[i] of z and writes output row out_rows[i] of y.
struct ExpertTask {
  ExpertWeights weights;
  const int32_t* in_rows = nullptr;   // host, [num_rows]
  const int32_t* out_rows = nullptr;  // host, [num_rows]
  int64_t num_rows = 0;
};

// SiTU: [beta tanh(g / beta) sigmoid(g)] * [linear_beta tanh(u / linear_beta)].
// linear_beta == 0 means the second factor is u itself (no tanh).
struct SituParams {
  float beta = 4.0f;
  float linear_beta = 25.0f;
};

struct RouterParams {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool renormalize = true;  // weights /= (their sum + 1e-20)
  float scaling_factor = 1.0f;
};

// Brings the pages of a latent cache that are not in memory there, in the order in which MlaAttend
// reads them. Called by the thread that called MlaAttend; all functions throw Error when a page
// cannot be read, which MlaAttend passes on.
class PageReader {
 public:
  virtual ~PageReader() = default;
  // MlaAttend is about to walk from token 0 to the last one, `walks` times.
  virtual void Begin(int64_t walks) = 0;
  // Tokens that may be provided at a time, a multiple of kProvidedTokens.
  virtual int64_t max_tokens() const = 0;
  // From here to the next call the addresses of the pages of the tokens [first, end) are valid. The
  // calls of a walk follow each other; `first` is a multiple of kProvidedTokens, and so is `end`
  // unless it is the end of the walk.
  virtual void Provide(int64_t first, int64_t end) = 0;
};
inline constexpr int64_t kProvidedTokens = 1024;

// One sequence's latent cache of one MLA layer: pages of `page_tokens` tokens, each token
// kv_lora + rope values (normed c first, then k_pe) in `format`.
struct LatentCacheView {
  void* const* pages = nullptr;  // host array of device addresses
  int64_t page_tokens = 0;       // a multiple of kAttentionBlock
  CacheFormat format = CacheFormat::kF32;
  PageReader* reader = nullptr;  // null: all pages are in memory
  bool is_in_file = false;       // pages are read and written without the device
};

// The attention walks the cache in blocks of this many tokens, counted from token 0 of the
// sequence.
inline constexpr int64_t kAttentionBlock = 64;

struct MlaShape {
  int64_t num_heads = 0;
  int64_t nope_dim = 0;  // qk_nope_head_dim
  int64_t rope_dim = 0;  // qk_rope_head_dim
  int64_t v_dim = 0;     // v_head_dim
  int64_t kv_lora = 0;   // latent width

  int64_t query_dim() const { return nope_dim + rope_dim; }
  int64_t latent_dim() const { return kv_lora + rope_dim; }
};

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // One line for people: "cpu (AVX-512, 2 threads)".
  virtual std::string Describe() const = 0;

  // ---- memory ----
  // At least 64-byte aligned, zero-filled.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* address) noexcept = 0;
  virtual void ToHost(void* host_dst, const void* src, size_t bytes) = 0;
  virtual void ToDevice(void* dst, const void* host_src, size_t bytes) = 0;
  virtual void Copy(void* dst, const void* src, size_t bytes) = 0;
  // These values are not needed any more. Whoever reads them before they are written gets anything.
  virtual void Discard(const void* /*begin*/, size_t /*bytes*/) noexcept {}
  virtual void Synchronize() = 0;  // what ExpertMlp was given is no longer needed
  // True when device addresses are addresses of the host, and any of those that is a multiple of 64
  // may stand for a page of a latent cache.
  virtual bool ReadsHostPages() const { return false; }

  // ---- dense ----
  // y[p, 0..rows) = W x[p] for n positions; x is [n, cols], row p of y starts at y + p * y_stride.
  virtual void MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) = 0;
  // dst[i] += src[i].
  virtual void Add(float* dst, const float* src, int64_t count) = 0;
  // y = w * x / sqrt(mean(x^2) + eps) for n rows of `dim`, which start `stride` floats apart in
  // both x and y. y may be x. Spec 3.
  virtual void RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
                       int64_t stride, float eps) = 0;
  // Attention residuals (spec 3.1): out[p] = sum_i softmax_i(s_i) V_i[p] over the sources
  // snapshots[0..num_snapshots) (each [n, dim], `snapshot_stride` floats apart) and then prefix
  // [n, dim]; s_i = dot(V_i, host_query) / sqrt(mean(V_i^2) + eps), where host_query[d] is
  // norm weight * projection. out may be neither. num_snapshots >= 1.
  virtual void ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                           int64_t num_snapshots, const float* prefix, const float* host_query,
                           int64_t n, int64_t dim, float eps) = 0;
  // out[i] = SiTU(gate[i], up[i]). out may be gate or up.
  virtual void SituGlu(float* out, const float* gate, const float* up, int64_t count,
                       SituParams params) = 0;
  // y[i] *= sigmoid(gate[i]).
  virtual void SigmoidGate(float* y, const float* gate, int64_t count) = 0;

  // ---- KDA (spec 3.2) ----
  // y[t, c] = silu(sum_{j=0..3} w[c, j] * s[t - 3 + j, c]) for n steps; s is x preceded by history
  // [3, channels] (oldest first), which is then advanced by n steps. host_w is [channels, 4].
  virtual void ShortConv(float* y, const float* x, const float* host_w, float* history, int64_t n,
                         int64_t channels) = 0;
  // Rows of `dim` (n * heads of them): x = x / sqrt(sum x^2 + 1e-6) * scale, in place.
  virtual void L2Normalize(float* x, int64_t rows, int64_t dim, float scale) = 0;
  // alpha[t, h, d] = exp(lower_bound * sigmoid(exp(A_log[h]) * (f[t, h, d] + dt_bias[h, d]))),
  // in place on f; beta[t, h] = sigmoid(beta[t, h]) in place. host_a_log has `heads` entries used.
  virtual void KdaGates(float* f, float* beta, const float* host_a_log, const float* host_dt_bias,
                        int64_t n, int64_t heads, int64_t dim, float lower_bound) = 0;
  // The gated delta rule for n steps: q, k, v, alpha, out are [n, heads, dim], beta [n, heads],
  // state [heads, dim (key), dim (value)], advanced. q is normalised and scaled, k normalised.
  virtual void KdaRecurrence(float* out, float* state, const float* q, const float* k,
                             const float* v, const float* alpha, const float* beta, int64_t n,
                             int64_t heads, int64_t dim) = 0;
  // y[r] = RMS(y[r]; host_w, eps) * sigmoid(gate[r]) for `rows` rows of `dim`, in place.
  virtual void GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows,
                            int64_t dim, float eps) = 0;

  // ---- MLA (spec 3.3, absorbed form) ----
  // Writes n tokens' [c, k_pe] (latent: [n, kv_lora + rope]) to the cache from token `first` on.
  virtual void MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                         int64_t n, const MlaShape& shape) = 0;
  // out[p, h] = [Wk_h^T q_nope, q_pe], [n, heads, kv_lora + rope], from q [n, heads, nope + rope].
  // kv_b is [heads * (nope + v), kv_lora]; rows of a head: nope key rows, then v value rows.
  virtual void MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                              const MlaShape& shape) = 0;
  // Causal attention of n consecutive positions, the first of them token `first` of its sequence,
  // over the cache (which already holds tokens 0 .. first + n - 1): out[p, h] = sum_s softmax c_s,
  // [n, heads, kv_lora]; scores are dot(query, [c_s, k_pe_s]) * scale.
  virtual void MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                         int64_t first, int64_t n, const MlaShape& shape, float scale) = 0;
  // out[p, h] = Wv_h o[p, h], [n, heads, v], from o [n, heads, kv_lora].
  virtual void MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                              const MlaShape& shape) = 0;

  // ---- MoE (spec 3.4) ----
  // RouterTopK will be asked for these. True: a device that works apart has begun, and RouterTopK
  // will not wait for what is asked for in between. False: nothing was done.
  virtual bool StartRouter(const float* /*logits*/, const float* /*host_bias*/, int64_t /*n*/,
                           const RouterParams& /*params*/) {
    return false;
  }
  // Top-k of sigmoid(logits) + bias per position, lowest index first on ties, in descending biased
  // score; weights from the unbiased sigmoids. logits [n, num_experts]; host_ids and host_weights
  // [n, top_k]. Waits for the result. host_bias has num_experts entries.
  virtual void RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                          const float* host_bias, int64_t n, const RouterParams& params) = 0;
  // ExpertMlp will be given the first n rows of this z. A device that works apart sends them to
  // where experts are computed; ExpertMlp will not wait for what is asked for in between.
  virtual void StartExperts(const float* /*z*/, int64_t /*n*/, int64_t /*latent*/) {}
  // For each task and row: y[out_row] = W2 SiTU(W1 z[in_row], W3 z[in_row]); z and y have rows of
  // `latent`. The weights may be reused after Synchronize, which need not wait for the
  // results; the row lists are copied.
  virtual void ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                         int64_t latent, SituParams params) = 0;
  // out[p] = sum_{j=0..top_k) weights[p, j] * y[p * top_k + j], j in order; rows of `dim`.
  virtual void CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                              int64_t top_k, int64_t dim) = 0;
};

// Memory of a device, owned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, size_t bytes)
      : device_(&device), bytes_(bytes), address_(device.Allocate(bytes)) {}
  ~DeviceBuffer() { Reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      Reset();
      device_ = std::exchange(other.device_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      address_ = std::exchange(other.address_, nullptr);
    }
    return *this;
  }

  float* floats() const { return static_cast<float*>(address_); }
  void* address() const { return address_; }
  size_t size_bytes() const { return bytes_; }

 private:
  void Reset() noexcept {
    if (address_ != nullptr) device_->Free(address_);
    address_ = nullptr;
  }
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  void* address_ = nullptr;
};

}  // namespace deltafin
