// Attention residuals: the score of a source, a workgroup for each source and position.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"

const uint kThreads = 256;
layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Job {
  Floats scores;  // [positions, num_snapshots + 1]
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

shared uint least_exponent[2];  // of the source and the query
// Of the source with itself, and with the query: by threads that wait for memory together.
const uint kApart = 64;
shared double sums[2][kLanes];

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint set = gl_WorkGroupID.x;
  uint position = gl_WorkGroupID.y;
  bool is_last = set == num_snapshots;
  uint first = (is_last ? 0 : set * snapshot_stride) + position * dim;
  Floats source = snapshots;
  if (is_last) source = prefix;

  if (thread < 2) least_exponent[thread] = 255u;
  barrier();
  atomicMin(least_exponent[0], LeastExponent(source, first, dim, thread, kThreads));
  atomicMin(least_exponent[1], LeastExponent(query, 0, dim, thread, kThreads));
  barrier();
  uint which = thread / kApart;
  uint lane = thread % kApart;
  if (which < 2 && lane < kLanes) {
    int quantum = Quantum(least_exponent[0]);
    Floats other = source;
    if (which == 1) other = query;
    uint other_first = which == 1 ? 0 : first;
    if (quantum + Quantum(least_exponent[which]) >= least) {
      sums[which][lane] = FromBits(
          floatBitsToUint(LaneSum(source, first, other, other_first, dim, lane)));
    } else {
      sums[which][lane] = ExactLaneSum(source, first, other, other_first, dim, lane);
    }
  }
  [[dont_unroll]] for (uint width = kLanes / 2; width > 0; width /= 2) {
    barrier();
    if (which < 2 && lane < width) {
      sums[which][lane] = Add(sums[which][lane], sums[which][lane + width]);
    }
  }
  barrier();
  if (thread != 0u) return;
  double mean = Div(sums[0][0], FromBits(dim_bits));
  scores.at[position * (num_snapshots + 1) + set] =
      ToBits(Mul(sums[1][0], Div(1.0lf, Sqrt(Add(mean, FromBits(eps))))));
}
