#include "device/cpu/peak_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace deltafin::peak_loops {
namespace {

constexpr int kChains = 12;  // latency 4 x 2 pipes, and some

// Different for each chain: the compiler computes equal chains once.
float Start(int chain) { return 0.25f + static_cast<float>(chain); }

int64_t FmaScalar(int64_t steps, float* result) {
  float a[kChains];
  for (int c = 0; c < kChains; ++c) a[c] = Start(c);
  for (int64_t i = 0; i < steps; ++i) {
    for (float& chain : a) chain = chain * 0.5f + 1.0f;
  }
  for (float chain : a) *result += chain;
  return steps * kChains * 2;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) int64_t FmaAvx2(int64_t steps, float* result) {
  __m256 a[kChains];
  const __m256 half = _mm256_set1_ps(0.5f);
  const __m256 one = _mm256_set1_ps(1.0f);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) a[c] = _mm256_set1_ps(Start(c));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) a[c] = _mm256_fmadd_ps(a[c], half, one);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) *result += _mm256_cvtss_f32(a[c]);
  return steps * kChains * 8 * 2;
}

__attribute__((target("avx512f"))) int64_t FmaAvx512(int64_t steps, float* result) {
  __m512 a[kChains];
  const __m512 half = _mm512_set1_ps(0.5f);
  const __m512 one = _mm512_set1_ps(1.0f);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) a[c] = _mm512_set1_ps(Start(c));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) a[c] = _mm512_fmadd_ps(a[c], half, one);
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) *result += _mm512_cvtss_f32(a[c]);
  return steps * kChains * 16 * 2;
}

__attribute__((target("avx2"))) uint64_t SumWordsAvx2(const uint64_t* words, int64_t count) {
  __m256i a[4] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const auto* p = reinterpret_cast<const __m256i*>(words + i + 4 * c);
      a[c] = _mm256_add_epi64(a[c], _mm256_loadu_si256(p));
    }
  }
  a[0] = _mm256_add_epi64(_mm256_add_epi64(a[0], a[1]), _mm256_add_epi64(a[2], a[3]));
  uint64_t sum =
      static_cast<uint64_t>(_mm256_extract_epi64(a[0], 0) ^ _mm256_extract_epi64(a[0], 3));
  for (; i < count; ++i) sum += words[i];
  return sum;
}
#elif defined(__aarch64__)
int64_t FmaNeon(int64_t steps, float* result) {
  float32x4_t a[kChains];
  const float32x4_t half = vdupq_n_f32(0.5f);
  for (int c = 0; c < kChains; ++c) a[c] = vdupq_n_f32(Start(c));
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& chain : a) chain = vfmaq_f32(half, chain, half);
  }
  for (auto& chain : a) *result += vgetq_lane_f32(chain, 0);
  return steps * kChains * 4 * 2;
}
#endif

}  // namespace

uint64_t SumWords(const uint64_t* words, int64_t count) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return SumWordsAvx2(words, count);
#endif
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int c = 0; c < 8; ++c) sum[c] += words[i + c];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

int64_t FmaLoop(CpuIsa isa, int64_t steps, float* result) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return FmaAvx2(steps, result);
    case CpuIsa::kAvx512:
      return FmaAvx512(steps, result);
#elif defined(__aarch64__)
    case CpuIsa::kNeon:
      return FmaNeon(steps, result);
#endif
    default:
      return FmaScalar(steps, result);
  }
}

}  // namespace deltafin::peak_loops
