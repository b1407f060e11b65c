// Attention of HEADS heads and a position over `span` tokens of their latent cache, a workgroup each:
// blocks of 64 tokens, merged in order. Leaves maximum, sum and output for mla_merge.comp, or where
// one span is all, the result. Each cached value is read for all of the heads at once.
//   BF16   the cache's values; else floats
//   HEADS
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#include "doubt.glsl"

#ifdef EMULATE_FMA
#define UNROLL [[dont_unroll]]
#else
#define UNROLL [[unroll]]
#endif

const uint kThreads = 256;
const uint kSets = kThreads / kLanes;
const uint kBlock = 64;
const uint kTokens = kBlock / kSets;  // of a thread
const uint kMostLatent = 640;
const uint kColumns = 2;       // of a thread
const uint kHeadsAtOnce = HEADS < 4 ? HEADS : 4;  // whose lanes are added up
layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pages { Floats at[]; };
layout(push_constant, std430) uniform Job {
  Floats result;   // [positions, heads, kv_lora]
  Floats spans;    // [positions, heads, num_spans, 2 + kv_lora]
  Floats queries;  // [positions, heads, latent]
  Pages pages;
  uint page_tokens;
  uint first;  // token of the first position
  uint span;
  uint num_spans;
  uint kv_lora;
  uint latent;
  uint scale;  // bits of a float
  uint flushes;
  uint heads;
};

// Queries, [HEADS, kMostLatent]; then lanes' sums, [kHeadsAtOnce, kBlock, kLanes + 1].
const uint kLaneStride = kLanes + 1;  // other banks
const uint kPartials = kHeadsAtOnce * kBlock * kLaneStride;
shared uint pool[HEADS * kMostLatent > kPartials ? HEADS * kMostLatent : kPartials];
shared uint scores[HEADS][kBlock];
shared float weights[kBlock][HEADS];
shared uint lane_sums[HEADS][kLanes];
// Least exponent fields, of which products without doubt are known.
shared uint least_query[HEADS];
shared uint least_weight[HEADS];
shared uint least_cached;
shared uint block_most[HEADS];  // so that larger floats are larger
shared uint most[HEADS];        // of the span so far
shared uint sum[HEADS];
shared uint old_factor[HEADS];
shared uint new_factor[HEADS];

uint Ordered(uint bits) { return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u; }
uint Unordered(uint key) { return (key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key; }

uint Cached(Floats page, uint token, uint i) {
  uint at = token % page_tokens * latent + i;
#ifdef BF16
  uint word = page.at[at >> 1];
  return (at & 1u) == 0u ? word << 16 : word & 0xffff0000u;
#else
  return page.at[at];
#endif
}
uint CachedOrZero(Floats page, uint token, uint i) {
  uint value = Cached(page, token, min(i, latent - 1));
  return i < latent ? value : 0u;
}

uint RowOf(uint head) {
  return gl_WorkGroupID.z * heads + min(gl_WorkGroupID.y * HEADS + head, heads - 1);
}
bool IsSafe(uint exponent, uint other) {
  return flushes == 0u || Quantum(exponent) + Quantum(other) >= -126;
}

// The sum of the lanes at pool[at].
uint SumOfLanes(uint at) {
  bool doubtful = false;
  precise float n[kLanes];
  UNROLL for (uint i = 0; i < kLanes; ++i) {
    doubtful = doubtful || IsSubnormal(pool[at + i]);
    n[i] = uintBitsToFloat(pool[at + i]);
  }
  UNROLL for (uint i = 0; i < 8; ++i) n[i] = n[i] + n[i + 8];
  UNROLL for (uint i = 0; i < 8; ++i) doubtful = doubtful || IsTiny(floatBitsToUint(n[i]));
  UNROLL for (uint i = 0; i < 4; ++i) n[i] = n[i] + n[i + 4];
  UNROLL for (uint i = 0; i < 4; ++i) doubtful = doubtful || IsTiny(floatBitsToUint(n[i]));
  n[0] = n[0] + n[2];
  n[1] = n[1] + n[3];
  precise float all = n[0] + n[1];
  doubtful = doubtful || IsTiny(floatBitsToUint(n[0])) || IsTiny(floatBitsToUint(n[1])) ||
             IsTiny(floatBitsToUint(all));
  if (!doubtful) return floatBitsToUint(all);
  [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
    [[dont_unroll]] for (uint i = 0; i < width; ++i) {
      pool[at + i] = ToBits(Add(FromBits(pool[at + i]), FromBits(pool[at + i + width])));
    }
  }
  return pool[at];
}

// Every lane's sums of its tokens, for all heads.
void Score(Floats page, uint begin, uint count, uint thread) {
  uint lane = thread % kLanes;
  uint token[kTokens];
  float a[kTokens][HEADS];
  uint next[kTokens];
  UNROLL for (uint t = 0; t < kTokens; ++t) {
    token[t] = begin + min(thread / kLanes + t * kSets, count - 1);
    next[t] = CachedOrZero(page, token[t], lane);
    UNROLL for (uint h = 0; h < HEADS; ++h) a[t][h] = 0.0;
  }
  uint least = 0xffffffffu;  // twice a magnitude less one: none of zero
  for (uint i = lane; i < latent + lane; i += kLanes) {
    uint value[kTokens];
    UNROLL for (uint t = 0; t < kTokens; ++t) {
      value[t] = next[t];
      next[t] = CachedOrZero(page, token[t], i + kLanes);
      least = min(least, (value[t] << 1) - 1u);
    }
    UNROLL for (uint h = 0; h < HEADS; ++h) {
      float q = uintBitsToFloat(pool[h * kMostLatent + i]);
      UNROLL for (uint t = 0; t < kTokens; ++t) {
        a[t][h] = Fma(q, uintBitsToFloat(value[t]), a[t][h]);
      }
    }
  }
  if (least != 0xffffffffu) atomicMin(least_cached, (least + 1u) >> 24);
  barrier();
  UNROLL for (uint g = 0; g < HEADS; g += kHeadsAtOnce) {
    UNROLL for (uint h = 0; h < kHeadsAtOnce; ++h) {
      UNROLL for (uint t = 0; t < kTokens; ++t) {
        uint s = thread / kLanes + t * kSets;
        pool[(h * kBlock + s) * kLaneStride + lane] = floatBitsToUint(a[t][g + h]);
      }
    }
    [[dont_unroll]] for (uint h = 0; h < kHeadsAtOnce; ++h) {
      if (IsSafe(least_query[g + h], least_cached)) continue;
      [[dont_unroll]] for (uint t = 0; t < kTokens; ++t) {
        uint s = thread / kLanes + t * kSets;
        double exact = 0.0lf;
        [[dont_unroll]] for (uint i = 0; i < latent; i += kLanes) {
          uint q = i + lane < latent ? queries.at[RowOf(g + h) * latent + i + lane] : 0u;
          exact = Fma(FromBits(q),
                      FromBits(CachedOrZero(page, begin + min(s, count - 1), i + lane)), exact);
        }
        pool[(h * kBlock + s) * kLaneStride + lane] = ToBits(exact);
      }
    }
    barrier();
    for (uint item = thread; item < kHeadsAtOnce * kBlock; item += kThreads) {
      uint s = item % kBlock;
      uint head = g + item / kBlock;
      uint score = MulBits(SumOfLanes(item * kLaneStride), scale);
      scores[head][s] = score;
      if (s < count) atomicMax(block_most[head], Ordered(score));
    }
    barrier();
  }
}

// Weights of the tokens of a block and their sum; then how it is merged.
void Weigh(uint count, bool is_first, uint thread) {
  for (uint item = thread; item < HEADS * kBlock; item += kThreads) {
    uint s = item % kBlock;
    uint head = item / kBlock;
    if (s >= count) continue;
    uint weight = ExpBits(AddBits(scores[head][s], Unordered(block_most[head]) ^ 0x80000000u));
    weights[s][head] = uintBitsToFloat(weight);
    scores[head][s] = weight;
    atomicMin(least_weight[head], Exponent(weight));
  }
  barrier();
  for (uint item = thread; item < HEADS * kLanes; item += kThreads) {
    uint head = item / kLanes;
    uint lane = 0u;
    for (uint s = item % kLanes; s < count; s += kLanes) lane = AddBits(lane, scores[head][s]);
    lane_sums[head][item % kLanes] = lane;
  }
  for (uint width = kLanes / 2; width > 0; width /= 2) {
    barrier();
    for (uint item = thread; item < HEADS * width; item += kThreads) {
      uint head = item / width;
      uint i = item % width;
      lane_sums[head][i] = AddBits(lane_sums[head][i], lane_sums[head][i + width]);
    }
  }
  barrier();
  if (thread >= HEADS) return;
  uint of_block = Unordered(block_most[thread]);
  if (is_first) {
    most[thread] = of_block;
    sum[thread] = lane_sums[thread][0];
    return;
  }
  uint larger = Ordered(most[thread]) < block_most[thread] ? of_block : most[thread];
  old_factor[thread] = ExpBits(AddBits(most[thread], larger ^ 0x80000000u));
  new_factor[thread] = ExpBits(AddBits(of_block, larger ^ 0x80000000u));
  sum[thread] =
      MergeBits(sum[thread], old_factor[thread], lane_sums[thread][0], new_factor[thread]);
  most[thread] = larger;
}

// Of arrays in registers, whose elements have no addresses.
#define SET(array, column, head, value)                       \
  UNROLL for (uint c_ = 0; c_ < kColumns; ++c_) {             \
    UNROLL for (uint h_ = 0; h_ < HEADS; ++h_) {              \
      if (c_ == (column) && h_ == (head)) array[c_][h_] = value; \
    }                                                         \
  }
#define GET(to, array, column, head)                          \
  UNROLL for (uint c_ = 0; c_ < kColumns; ++c_) {             \
    UNROLL for (uint h_ = 0; h_ < HEADS; ++h_) {              \
      if (c_ == (column) && h_ == (head)) to = array[c_][h_]; \
    }                                                         \
  }

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint begin = gl_WorkGroupID.x * span;
  uint end = min(begin + span, first + gl_WorkGroupID.z + 1);
  if (begin >= end) return;
  float outputs[kColumns][HEADS];
  for (uint b = begin; b < end; b += kBlock) {
    Floats page = pages.at[b / page_tokens];
    uint count = min(kBlock, end - b);
    barrier();
    if (thread < HEADS) {
      if (b == begin) least_query[thread] = 255u;
      least_weight[thread] = 255u;
      block_most[thread] = 0u;
    }
    if (thread == 0) least_cached = 255u;
    barrier();
    uint padded = (latent + kLanes - 1) / kLanes * kLanes;
    for (uint item = thread; item < HEADS * padded; item += kThreads) {
      uint head = item / padded;
      uint i = item % padded;
      uint bits = i < latent ? queries.at[RowOf(head) * latent + i] : 0u;
      pool[head * kMostLatent + i] = bits;
      if (b == begin) atomicMin(least_query[head], Exponent(bits));
    }
    barrier();
    Score(page, b, count, thread);
    Weigh(count, b == begin, thread);
    barrier();

    float o[kColumns][HEADS];
    uint next[kColumns];
    UNROLL for (uint c = 0; c < kColumns; ++c) {
      next[c] = Cached(page, b, min(thread + c * kThreads, kv_lora - 1));
      UNROLL for (uint h = 0; h < HEADS; ++h) o[c][h] = 0.0;
    }
    for (uint s = 0; s < count; ++s) {
      uint value[kColumns] = next;
      UNROLL for (uint c = 0; c < kColumns; ++c) {
        next[c] = Cached(page, b + min(s + 1, count - 1), min(thread + c * kThreads, kv_lora - 1));
      }
      UNROLL for (uint h = 0; h < HEADS; ++h) {
        float weight = weights[s][h];
        UNROLL for (uint c = 0; c < kColumns; ++c) {
          o[c][h] = Fma(weight, uintBitsToFloat(value[c]), o[c][h]);
        }
      }
    }
    [[dont_unroll]] for (uint h = 0; h < HEADS; ++h) {
      if (IsSafe(least_weight[h], least_cached)) continue;
      [[dont_unroll]] for (uint c = 0; c < kColumns; ++c) {
        uint column = min(thread + c * kThreads, kv_lora - 1);
        double exact = 0.0lf;
        [[dont_unroll]] for (uint s = 0; s < count; ++s) {
          exact = Fma(FromBits(scores[h][s]), FromBits(Cached(page, b + s, column)), exact);
        }
        SET(o, c, h, uintBitsToFloat(ToBits(exact)));
      }
    }
    uint doubts = 0u;  // a bit for each output
    UNROLL for (uint h = 0; h < HEADS; ++h) {
      UNROLL for (uint c = 0; c < kColumns; ++c) {
        if (b == begin) {
          outputs[c][h] = o[c][h];
          continue;
        }
        float old = outputs[c][h];
        precise float product = o[c][h] * uintBitsToFloat(new_factor[h]);
        float merged = Fma(old, uintBitsToFloat(old_factor[h]), product);
        bool doubtful = IsTiny(floatBitsToUint(product)) || IsTiny(floatBitsToUint(merged)) ||
                        IsSubnormal(floatBitsToUint(old)) || IsSubnormal(old_factor[h]);
        if (doubtful) {
          doubts |= 1u << (c * HEADS + h);
        } else {
          outputs[c][h] = merged;
        }
      }
    }
    [[dont_unroll]] for (uint i = 0; doubts != 0u; ++i, doubts >>= 1) {
      if ((doubts & 1u) == 0u) continue;
      uint h = i % HEADS;
      float old;
      float added;
      GET(old, outputs, i / HEADS, h);
      GET(added, o, i / HEADS, h);
      double product = Mul(FromBits(floatBitsToUint(added)), FromBits(new_factor[h]));
      double merged =
          Fma(FromBits(floatBitsToUint(old)), FromBits(old_factor[h]), product);
      SET(outputs, i / HEADS, h, uintBitsToFloat(ToBits(merged)));
    }
  }
  UNROLL for (uint h = 0; h < HEADS; ++h) {
    if (gl_WorkGroupID.y * HEADS + h >= heads) break;
    uint row = RowOf(h);
    uint to = (row * num_spans + gl_WorkGroupID.x) * (2 + kv_lora);
    if (num_spans > 1u && thread == 0u) {
      spans.at[to] = most[h];
      spans.at[to + 1] = sum[h];
    }
    UNROLL for (uint c = 0; c < kColumns; ++c) {
      uint column = thread + c * kThreads;
      if (column >= kv_lora) break;
      if (num_spans == 1u) {
        result.at[row * kv_lora + column] =
            ToBits(Div(FromBits(floatBitsToUint(outputs[c][h])), FromBits(sum[h])));
      } else {
        spans.at[to + 2 + column] = floatBitsToUint(outputs[c][h]);
      }
    }
  }
}
