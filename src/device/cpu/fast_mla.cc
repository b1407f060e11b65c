#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cpu/fast_device.h"

namespace deltafin {

static_assert(kBlockTokens == kAttentionBlock);
static_assert(kSegmentTokens == kProvidedTokens);

// Positions that share a walk over a cache of which pages are read: more of them, so that it is
// read less often.
constexpr int64_t kReaderBatch = 64;

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
  scratch_.Reserve(AbsorbScratch(shape.nope_dim, shape.kv_lora));
  const int64_t q_stride = shape.num_heads * shape.query_dim();
  const int64_t out_stride = shape.num_heads * shape.latent_dim();
  const double ns =
      2 * kernels_.fma_ns * static_cast<double>(shape.nope_dim * shape.kv_lora * (n + 4));
  Parallel(shape.num_heads, 1, ns, [&](int64_t begin, int64_t end) {
    const ThreadScratch::Lease scratch(scratch_);
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

// Some positions and some segments of their context: what is computed before states are merged.
struct FastDevice::AttentionWave {
  AttentionWave(const LatentCacheView& cache_view, const MlaShape& mla_shape)
      : cache(cache_view), shape(mla_shape) {}

  const LatentCacheView& cache;
  const MlaShape& shape;
  float scale = 1.0f;
  RowsOf<const float> queries;  // [positions * heads], packed
  int64_t first_position = 0;   // a token of the sequence
  int64_t positions = 0;
  int64_t first_segment = 0;
  int64_t segments = 0;
  float* states = nullptr;  // [positions, segments, heads]
  float* totals = nullptr;  // [positions, heads]

  float* StateAt(int64_t position, int64_t segment, int64_t head) const {
    return states + ((position * segments + segment) * shape.num_heads + head) *
                        AttentionStateFloats(shape.kv_lora);
  }
  // The tokens of a segment that a position sees; none if it comes after the position.
  int64_t TokensOf(int64_t position, int64_t segment) const {
    const int64_t before = (first_segment + segment) * kSegmentTokens;
    return std::min(kSegmentTokens, first_position + position + 1 - before);
  }
};

int64_t FastDevice::WantedAttentionUnits() const { return 4 * pool().num_threads(); }

// Positions x segments x groups of heads are independent up to the states that they leave, which
// are merged in order. They are computed in waves, so that the states of a long context need not
// all exist at once.
void FastDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                           int64_t first, int64_t n, const MlaShape& shape, float scale) {
  DF_CHECK(cache.page_tokens > 0 && cache.page_tokens % kAttentionBlock == 0);
  const int64_t heads = shape.num_heads;
  const int64_t state_floats = AttentionStateFloats(shape.kv_lora);
  PageReader* const reader = cache.reader;
  const int64_t batch =
      std::min(n, std::max(WantedAttentionUnits(), reader != nullptr ? kReaderBatch : 0));
  if (batch == 0) return;
  int64_t wave_segments = (WantedAttentionUnits() + batch - 1) / batch;
  if (reader != nullptr) {
    wave_segments = std::min(wave_segments, reader->max_tokens() / kSegmentTokens);
    reader->Begin((n + batch - 1) / batch);
  }
  scratch_.Reserve(AttentionScratch(shape.latent_dim(), heads));
  AttentionWave wave(cache, shape);
  wave.scale = scale;
  wave.states = states_.Reserve(batch * wave_segments * heads * state_floats);
  wave.totals = totals_.Reserve(batch * heads * state_floats);
  for (int64_t p = 0; p < n; p += batch) {
    wave.positions = std::min(batch, n - p);
    wave.first_position = first + p;
    wave.queries = PackRows(WeightFormat::kF32, absorbed + p * heads * shape.latent_dim(),
                            wave.positions * heads, shape.latent_dim());
    const int64_t tokens = wave.first_position + wave.positions;
    const int64_t segments = (tokens + kSegmentTokens - 1) / kSegmentTokens;
    for (int64_t s = 0; s < segments; s += wave_segments) {
      wave.first_segment = s;
      wave.segments = std::min(wave_segments, segments - s);
      if (reader != nullptr) {
        reader->Provide(s * kSegmentTokens, std::min(tokens, (s + wave.segments) * kSegmentTokens));
      }
      AttendWave(wave);
      MergeWave(wave);
    }
    for (int64_t row = 0; row < wave.positions * heads; ++row) {
      kernels_.attention_finish(out + (p * heads + row) * shape.kv_lora,
                                wave.totals + row * state_floats, shape.kv_lora);
    }
  }
}

void FastDevice::AttendWave(const AttentionWave& wave) {
  const int64_t heads = wave.shape.num_heads;
  const int64_t latent = wave.shape.latent_dim();
  // Few positions and segments: the heads are shared out too, in groups that fill the tiles.
  const int64_t units = wave.positions * wave.segments;
  const int64_t parts =
      std::clamp((WantedAttentionUnits() + units - 1) / units, int64_t{1}, (heads + 11) / 12);
  const int64_t part_heads = RoundUpTo((heads + parts - 1) / parts, std::min<int64_t>(heads, 6));
  const int64_t num_parts = (heads + part_heads - 1) / part_heads;
  const auto attend = [&](int64_t unit, float* scratch) {
    const int64_t segment = unit / num_parts % wave.segments;
    const int64_t p = unit / num_parts / wave.segments;
    const int64_t head = unit % num_parts * part_heads;
    AttentionJob job;
    job.num_tokens = wave.TokensOf(p, segment);
    if (job.num_tokens <= 0) return;
    job.first_token = (wave.first_segment + segment) * kSegmentTokens;
    job.queries = wave.queries.base + (p * heads + head) * wave.queries.stride;
    job.query_stride = wave.queries.stride;
    job.num_heads = std::min(part_heads, heads - head);
    job.pages = wave.cache.pages;
    job.page_tokens = wave.cache.page_tokens;
    job.bf16_cache = wave.cache.format == CacheFormat::kBf16;
    job.latent_dim = latent;
    job.kv_lora = wave.shape.kv_lora;
    job.scale = wave.scale;
    job.states = wave.StateAt(p, segment, head);
    kernels_.attend_segment(job, scratch);
  };
  const int64_t tokens = std::min(kSegmentTokens, wave.first_position + wave.positions);
  const double ns = 1.5 * kernels_.fma_ns *
                    static_cast<double>((latent + wave.shape.kv_lora) * tokens * part_heads);
  Parallel(units * num_parts, 1, ns, [&](int64_t begin, int64_t end) {
    const ThreadScratch::Lease scratch(scratch_);
    for (int64_t unit = begin; unit < end; ++unit) attend(unit, scratch.data());
  });
}

void FastDevice::MergeWave(const AttentionWave& wave) {
  const int64_t heads = wave.shape.num_heads;
  const int64_t state_floats = AttentionStateFloats(wave.shape.kv_lora);
  const double ns = 0.2 * static_cast<double>(wave.segments * state_floats);
  Parallel(wave.positions * heads, 1, ns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const total = wave.totals + row * state_floats;
      for (int64_t segment = 0; segment < wave.segments; ++segment) {
        if (wave.TokensOf(row / heads, segment) <= 0) break;
        const float* const state = wave.StateAt(row / heads, segment, row % heads);
        if (wave.first_segment + segment == 0) {
          std::copy_n(state, state_floats, total);
        } else {
          kernels_.attention_merge(total, state, wave.shape.kv_lora);
        }
      }
    }
  });
}

void FastDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                const MlaShape& shape) {
  DF_CHECK(kv_b.cols == shape.kv_lora);
  const int64_t packed_floats = PackedFloats(kv_b.format, shape.kv_lora);
  const bool packed = IsPacked(kv_b.format, shape.kv_lora);
  const int64_t o_stride = shape.num_heads * shape.kv_lora;
  const int64_t out_stride = shape.num_heads * shape.v_dim;
  const int64_t scale_bytes = kv_b.format == WeightFormat::kInt8 ? 4 : kv_b.cols / kMxBlock;
  scratch_.Reserve(kMatMulScratch + std::min(n, kPanelPositions) * packed_floats);
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
  const double ns =
      2 * kernels_.fma_ns * static_cast<double>(shape.v_dim * shape.kv_lora * (n + 4));
  Parallel(shape.num_heads, 1, ns, [&](int64_t begin, int64_t end) {
    const ThreadScratch::Lease scratch(scratch_);
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t p = 0; p < n; p += kPanelPositions) {
        expand(head, p, std::min(n - p, kPanelPositions), scratch.data());
      }
    }
  });
}

}  // namespace deltafin
