// Multi-head latent attention in the absorbed form, spec 3.3: no rotation, the "rope" values are
// plain query and key values that all heads share.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/cpu/plain_device.h"
#include "device/cpu/plain_math.h"

namespace deltafin {
namespace {

constexpr int64_t kPlainSegmentTokens = 1024;

static_assert(kPlainSegmentTokens == kProvidedTokens);

// Where the cached values of one token lie.
std::byte* TokenAddress(const LatentCacheView& cache, int64_t token, const MlaShape& shape) {
  const int64_t value_bytes = cache.format == CacheFormat::kF32 ? 4 : 2;
  std::byte* const page = static_cast<std::byte*>(cache.pages[token / cache.page_tokens]);
  return page + token % cache.page_tokens * shape.latent_dim() * value_bytes;
}

float CachedValue(CacheFormat format, const std::byte* token, int64_t j) {
  return format == CacheFormat::kF32 ? plain::Load<float>(token, j)
                                     : Bf16ToFloat(plain::Load<uint16_t>(token, j));
}

// A softmax-weighted sum over some tokens, not yet divided by `sum`; weights are relative to `max`.
struct PartialSoftmax {
  float max = 0.0f;
  float sum = 0.0f;
  float* out = nullptr;  // [kv_lora]
};

// The tokens [begin, end) of one block.
void AttendBlock(PartialSoftmax* block, const float* query, const LatentCacheView& cache,
                 int64_t begin, int64_t end, const MlaShape& shape, float scale) {
  float e[kAttentionBlock];
  for (int64_t s = begin; s < end; ++s) {
    const std::byte* const token = TokenAddress(cache, s, shape);
    e[s - begin] = plain::DotOf(
                       shape.latent_dim(), [&](int64_t j) { return query[j]; },
                       [&](int64_t j) { return CachedValue(cache.format, token, j); }) *
                   scale;
  }
  block->max = *std::max_element(e, e + (end - begin));
  float lanes[plain::kLanes] = {};
  std::fill_n(block->out, shape.kv_lora, 0.0f);
  for (int64_t s = 0; s < end - begin; ++s) {
    e[s] = plain::Exp(e[s] - block->max);
    lanes[s % plain::kLanes] += e[s];
    const std::byte* const token = TokenAddress(cache, begin + s, shape);
    for (int64_t j = 0; j < shape.kv_lora; ++j) {
      block->out[j] = std::fma(e[s], CachedValue(cache.format, token, j), block->out[j]);
    }
  }
  block->sum = plain::Sum16(lanes);
}

// `next` follows; where nothing came before, it is taken as it is.
void Merge(PartialSoftmax* into, const PartialSoftmax& next, bool is_first, int64_t kv_lora) {
  if (is_first) {
    into->max = next.max;
    into->sum = next.sum;
    std::copy_n(next.out, kv_lora, into->out);
    return;
  }
  const float max = std::max(into->max, next.max);
  const float a = plain::Exp(into->max - max);
  const float b = plain::Exp(next.max - max);
  into->sum = std::fma(into->sum, a, next.sum * b);
  for (int64_t j = 0; j < kv_lora; ++j) {
    into->out[j] = std::fma(into->out[j], a, next.out[j] * b);
  }
  into->max = max;
}

}  // namespace

void PlainDevice::MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                            int64_t n, const MlaShape& shape) {
  DF_CHECK(cache.page_tokens > 0 && cache.page_tokens % kAttentionBlock == 0);
  const int64_t dim = shape.latent_dim();
  for (int64_t p = 0; p < n; ++p) {
    std::byte* const token = TokenAddress(cache, first + p, shape);
    for (int64_t j = 0; j < dim; ++j) {
      const float value = latent[p * dim + j];
      if (cache.format == CacheFormat::kF32) {
        std::memcpy(token + j * 4, &value, 4);
      } else {
        const uint16_t rounded = FloatToBf16(value);
        std::memcpy(token + j * 2, &rounded, 2);
      }
    }
  }
}

void PlainDevice::MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                                 const MlaShape& shape) {
  DF_CHECK(kv_b.format != WeightFormat::kMxfp4);
  DF_CHECK(kv_b.cols == shape.kv_lora);
  ForEach(n * shape.num_heads, 1, [&](int64_t row) {
    const int64_t head = row % shape.num_heads;
    const float* const query = q + row * shape.query_dim();
    float* const o = out + row * shape.latent_dim();
    std::fill_n(o, shape.kv_lora, 0.0f);
    for (int64_t i = 0; i < shape.nope_dim; ++i) {
      const int64_t w_row = head * (shape.nope_dim + shape.v_dim) + i;
      const float q_i =
          kv_b.format == WeightFormat::kInt8 ? query[i] * plain::RowScale(kv_b, w_row) : query[i];
      for (int64_t j = 0; j < shape.kv_lora; ++j) {
        o[j] = std::fma(q_i, plain::Element(kv_b, w_row, j), o[j]);
      }
    }
    std::copy_n(query + shape.nope_dim, shape.rope_dim, o + shape.kv_lora);
  });
}

// Segment by segment, so that a PageReader need not provide more than one at a time.
void PlainDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                            int64_t first, int64_t n, const MlaShape& shape, float scale) {
  DF_CHECK(cache.page_tokens > 0 && cache.page_tokens % kAttentionBlock == 0);
  std::vector<float> scratch(static_cast<size_t>(2 * shape.num_heads * shape.kv_lora));
  std::vector<PartialSoftmax> totals(static_cast<size_t>(n * shape.num_heads));
  for (int64_t row = 0; row < n * shape.num_heads; ++row) {
    totals[row].out = out + row * shape.kv_lora;
  }
  if (cache.reader != nullptr && n > 0) cache.reader->Begin(1);
  for (int64_t begin = 0; begin < first + n; begin += kPlainSegmentTokens) {
    const int64_t end = std::min(begin + kPlainSegmentTokens, first + n);
    if (cache.reader != nullptr) cache.reader->Provide(begin, end);
    ForEach(shape.num_heads, 1, [&](int64_t head) {
      PartialSoftmax block, segment;
      block.out = scratch.data() + 2 * head * shape.kv_lora;
      segment.out = block.out + shape.kv_lora;
      for (int64_t p = std::max<int64_t>(0, begin - first); p < n; ++p) {
        const int64_t row = p * shape.num_heads + head;
        const int64_t seen = std::min(end, first + p + 1);
        for (int64_t b = begin; b < seen; b += kAttentionBlock) {
          AttendBlock(&block, absorbed + row * shape.latent_dim(), cache, b,
                      std::min(b + kAttentionBlock, seen), shape, scale);
          Merge(&segment, block, b == begin, shape.kv_lora);
        }
        Merge(&totals[row], segment, begin == 0, shape.kv_lora);
      }
    });
  }
  ForEach(n * shape.num_heads, 1, [&](int64_t row) {
    const PartialSoftmax& total = totals[row];
    for (int64_t j = 0; j < shape.kv_lora; ++j) total.out[j] = total.out[j] / total.sum;
  });
}

void PlainDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                 const MlaShape& shape) {
  DF_CHECK(kv_b.cols == shape.kv_lora);
  ForEach(n * shape.num_heads, 1, [&](int64_t row) {
    const int64_t head = row % shape.num_heads;
    const int64_t first_row = head * (shape.nope_dim + shape.v_dim) + shape.nope_dim;
    for (int64_t i = 0; i < shape.v_dim; ++i) {
      out[row * shape.v_dim + i] = plain::DotRow(kv_b, first_row + i, o + row * shape.kv_lora);
    }
  });
}

}  // namespace deltafin
