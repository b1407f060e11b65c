#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cpu/fast_device.h"

namespace deltafin {

static_assert(kBlockTokens == kAttentionBlock);

void FastDevice::MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                           int64_t n, const MlaShape& shape) {
  DF_CHECK(cache.page_tokens > 0 && cache.page_tokens % kAttentionBlock == 0);
  const int64_t dim = shape.latent_dim();
  const bool bf16 = cache.format == CacheFormat::kBf16;
  const int64_t token_bytes = dim * (bf16 ? 2 : 4);
  for (int64_t p = 0; p < n; ++p) {
    const int64_t token = first + p;
    std::byte* const to = static_cast<std::byte*>(cache.pages[token / cache.page_tokens]) +
                          token % cache.page_tokens * token_bytes;
    if (bf16) {
      kernels_.to_bf16(reinterpret_cast<uint16_t*>(to), latent + p * dim, dim);
    } else {
      std::memcpy(to, latent + p * dim, static_cast<size_t>(token_bytes));
    }
  }
}

void FastDevice::MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                                const MlaShape& shape) {
  DF_CHECK(kv_b.format != WeightFormat::kMxfp4);
  DF_CHECK(kv_b.cols == shape.kv_lora);
  workspace_.Reserve(AbsorbScratch(shape.nope_dim, shape.kv_lora));
  const int64_t q_stride = shape.num_heads * shape.query_dim();
  const int64_t out_stride = shape.num_heads * shape.latent_dim();
  const double ns = 0.02 * static_cast<double>(shape.nope_dim * shape.kv_lora * (n + 4));
  Parallel(shape.num_heads, 1, ns, [&](int64_t begin, int64_t end) {
    const Workspace::Lease scratch(workspace_);
    for (int64_t head = begin; head < end; ++head) {
      const int64_t row = head * (shape.nope_dim + shape.v_dim);
      const float* const query = q + head * shape.query_dim();
      float* const to = out + head * shape.latent_dim();
      AbsorbJob job;
      job.format = kv_b.format;
      job.data = kv_b.data + row * kv_b.row_bytes();
      job.scales = kv_b.format == WeightFormat::kInt8 ? kv_b.scales + row * 4 : nullptr;
      job.rows = shape.nope_dim;
      job.cols = shape.kv_lora;
      job.n = n;
      job.q = {query, q_stride, nullptr};
      job.out = {to, out_stride, nullptr};
      kernels_.absorb(job, scratch.data());
      for (int64_t p = 0; p < n; ++p) {
        std::memcpy(to + p * out_stride + shape.kv_lora, query + p * q_stride + shape.nope_dim,
                    static_cast<size_t>(shape.rope_dim) * sizeof(float));
      }
    }
  });
}

// Positions x segments x groups of heads are independent up to the states that they leave, which
// are merged in order. They are computed in waves, so that the states of a long context need not
// all exist at once.
void FastDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                           int64_t first, int64_t n, const MlaShape& shape, float scale) {
  DF_CHECK(cache.page_tokens > 0 && cache.page_tokens % kAttentionBlock == 0);
  const int64_t heads = shape.num_heads;
  const int64_t latent = shape.latent_dim();
  const int64_t state_floats = AttentionStateFloats(shape.kv_lora);
  const int64_t wanted_units = 4 * pool().num_threads();
  const int64_t batch = std::min(n, wanted_units);
  const int64_t wave = (wanted_units + batch - 1) / batch;  // segments
  const double token_head_ns = 0.015 * static_cast<double>(latent + shape.kv_lora);
  workspace_.Reserve(AttentionScratch(latent, heads));
  float* const states = states_.Reserve(batch * wave * heads * state_floats);
  float* const totals = totals_.Reserve(batch * heads * state_floats);
  for (int64_t batch_at = 0; batch_at < n; batch_at += batch) {
    const int64_t positions = std::min(batch, n - batch_at);
    const int64_t base = first + batch_at;  // the first position of the batch
    const RowsOf<const float> queries = PackRows(
        WeightFormat::kF32, absorbed + batch_at * heads * latent, positions * heads, latent);
    const int64_t segments = (base + positions + kSegmentTokens - 1) / kSegmentTokens;
    for (int64_t wave_at = 0; wave_at < segments; wave_at += wave) {
      const int64_t in_wave = std::min(wave, segments - wave_at);
      const int64_t units = positions * in_wave;
      const int64_t parts =
          std::clamp((wanted_units + units - 1) / units, int64_t{1}, (heads + 11) / 12);
      const int64_t part_heads =
          RoundUpTo((heads + parts - 1) / parts, std::min<int64_t>(heads, 6));
      const int64_t num_parts = (heads + part_heads - 1) / part_heads;
      const auto attend = [&](int64_t unit, float* scratch) {
        const int64_t part = unit % num_parts;
        const int64_t segment = unit / num_parts % in_wave;
        const int64_t p = unit / num_parts / in_wave;
        AttentionJob job;
        job.first_token = (wave_at + segment) * kSegmentTokens;
        job.num_tokens = std::min(kSegmentTokens, base + p + 1 - job.first_token);
        if (job.num_tokens <= 0) return;
        const int64_t head = part * part_heads;
        job.queries = queries.base + (p * heads + head) * queries.stride;
        job.query_stride = queries.stride;
        job.num_heads = std::min(part_heads, heads - head);
        job.pages = cache.pages;
        job.page_tokens = cache.page_tokens;
        job.bf16_cache = cache.format == CacheFormat::kBf16;
        job.latent_dim = latent;
        job.kv_lora = shape.kv_lora;
        job.scale = scale;
        job.states = states + ((p * in_wave + segment) * heads + head) * state_floats;
        kernels_.attend_segment(job, scratch);
      };
      const int64_t tokens = std::min(kSegmentTokens, base + positions);
      Parallel(units * num_parts, 1, token_head_ns * static_cast<double>(tokens * part_heads),
               [&](int64_t begin, int64_t end) {
                 const Workspace::Lease scratch(workspace_);
                 for (int64_t unit = begin; unit < end; ++unit) attend(unit, scratch.data());
               });
      const double merge_ns = 0.2 * static_cast<double>(in_wave * state_floats);
      Parallel(positions * heads, 1, merge_ns, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t p = row / heads;
          float* const total = totals + row * state_floats;
          for (int64_t segment = 0; segment < in_wave; ++segment) {
            if ((wave_at + segment) * kSegmentTokens > base + p) break;
            const float* const state =
                states + ((p * in_wave + segment) * heads + row % heads) * state_floats;
            if (wave_at + segment == 0) {
              std::copy_n(state, state_floats, total);
            } else {
              kernels_.attention_merge(total, state, shape.kv_lora);
            }
          }
        }
      });
    }
    for (int64_t row = 0; row < positions * heads; ++row) {
      kernels_.attention_finish(out + (batch_at * heads + row) * shape.kv_lora,
                                totals + row * state_floats, shape.kv_lora);
    }
  }
}

void FastDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                const MlaShape& shape) {
  DF_CHECK(kv_b.cols == shape.kv_lora);
  const int64_t packed_floats = PackedFloats(kv_b.format, shape.kv_lora);
  const bool packed = IsPacked(kv_b.format, shape.kv_lora);
  const int64_t o_stride = shape.num_heads * shape.kv_lora;
  const int64_t out_stride = shape.num_heads * shape.v_dim;
  const int64_t scale_bytes = kv_b.format == WeightFormat::kInt8 ? 4 : kv_b.cols / kMxBlock;
  workspace_.Reserve(kMatMulScratch + std::min(n, kPanelPositions) * packed_floats);
  const auto expand = [&](int64_t head, int64_t p, int64_t some, float* scratch) {
    const float* const x = o + p * o_stride + head * shape.kv_lora;
    MatMulJob job;
    job.x = {x, o_stride, nullptr};
    if (!packed) {
      float* const rows = scratch + kMatMulScratch;
      for (int64_t i = 0; i < some; ++i) {
        PackRow(kv_b.format, rows + i * packed_floats, x + i * o_stride, 0, kv_b.cols, kv_b.cols);
      }
      job.x = {rows, packed_floats, nullptr};
    }
    const int64_t row = head * (shape.nope_dim + shape.v_dim) + shape.nope_dim;
    job.format = kv_b.format;
    job.data = kv_b.data + row * kv_b.row_bytes();
    job.scales = kv_b.scales == nullptr ? nullptr : kv_b.scales + row * scale_bytes;
    job.rows = shape.v_dim;
    job.cols = kv_b.cols;
    job.n = some;
    job.y = {out + p * out_stride + head * shape.v_dim, out_stride, nullptr};
    kernels_.matmul(job, scratch);
  };
  const double ns = 0.02 * static_cast<double>(shape.v_dim * shape.kv_lora * (n + 4));
  Parallel(shape.num_heads, 1, ns, [&](int64_t begin, int64_t end) {
    const Workspace::Lease scratch(workspace_);
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t p = 0; p < n; p += kPanelPositions) {
        expand(head, p, std::min(n - p, kPanelPositions), scratch.data());
      }
    }
  });
}

}  // namespace deltafin
