// Attention residuals of a position, a workgroup each: 16 threads for each source.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"

const uint kThreads = 256;
const uint kMostSources = 16;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Job {
  Floats result;
  Floats snapshots;
  Floats prefix;
  Floats query;
  uint snapshot_stride;
  uint num_snapshots;
  uint dim;
  uint dim_bits;  // bits of floats
  uint eps;
  int least;  // exponent of a product that is not subnormal
};

shared uint least_exponent[kMostSources + 1];  // of the sources and the query
shared double squares[kMostSources][kLanes];
shared double products[kMostSources][kLanes];
shared double scores[kMostSources];
shared double weights[kMostSources];

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint position = gl_WorkGroupID.x;
  uint lane = thread % kLanes;
  uint set = thread / kLanes;
  uint sources = num_snapshots + 1;
  bool is_last = set == num_snapshots;
  uint first = (is_last ? 0 : set * snapshot_stride) + position * dim;
  Floats source = snapshots;
  if (is_last) source = prefix;

  if (thread <= kMostSources) least_exponent[thread] = 255u;
  barrier();
  if (set < sources) {
    uint exponent = 255u;
    for (uint i = lane; i < dim; i += kLanes) {
      exponent = min(exponent, Exponent(source.at[first + i]));
    }
    atomicMin(least_exponent[set], exponent);
  }
  uint exponent = 255u;
  for (uint i = thread; i < dim; i += kThreads) exponent = min(exponent, Exponent(query.at[i]));
  atomicMin(least_exponent[kMostSources], exponent);
  barrier();
  if (set < sources) {
    int quantum = Quantum(least_exponent[set]);
    if (quantum + min(quantum, Quantum(least_exponent[kMostSources])) >= least) {
      squares[set][lane] =
          FromBits(floatBitsToUint(LaneSum(source, first, source, first, dim, lane)));
      products[set][lane] =
          FromBits(floatBitsToUint(LaneSum(source, first, query, 0, dim, lane)));
    } else {
      squares[set][lane] = ExactLaneSum(source, first, source, first, dim, lane);
      products[set][lane] = ExactLaneSum(source, first, query, 0, dim, lane);
    }
  }
  barrier();
  if (thread < sources) {
    [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
      for (uint i = 0; i < width; ++i) {
        squares[thread][i] = Add(squares[thread][i], squares[thread][i + width]);
        products[thread][i] = Add(products[thread][i], products[thread][i + width]);
      }
    }
    double mean = Div(squares[thread][0], FromBits(dim_bits));
    scores[thread] =
        Mul(products[thread][0], Div(1.0lf, Sqrt(Add(mean, FromBits(eps)))));
  }
  barrier();
  if (thread < sources) {
    double most = scores[0];
    for (uint i = 1; i < sources; ++i) most = most < scores[i] ? scores[i] : most;
    weights[thread] = Exp(Add(scores[thread], -most));
  }
  barrier();
  double weight = 0.0lf;
  if (thread < sources) {
    double sum = weights[0];
    for (uint i = 1; i < sources; ++i) sum = Add(sum, weights[i]);
    weight = Div(weights[thread], sum);
  }
  barrier();
  if (thread < sources) weights[thread] = weight;
  barrier();
  for (uint i = thread; i < dim; i += kThreads) {
    double sum = 0.0lf;
    [[dont_unroll]] for (uint s = 0; s < sources; ++s) {
      uint at = position * dim + i;
      double value = FromBits(s == num_snapshots ? prefix.at[at]
                                                 : snapshots.at[s * snapshot_stride + at]);
      sum = s == 0 ? Mul(weights[s], value) : Fma(weights[s], value, sum);
    }
    result.at[position * dim + i] = ToBits(sum);
  }
}
