// Attention residuals: the score of a source, a workgroup for each source and position.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "dot.glsl"
#define STAGED_ROWS 2
#include "staged.glsl"

const uint kThreads = kStagers;
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
  uint which = thread / kApart;
  uint lane = thread % kApart;
  bool is_lane = which < 2 && lane < kLanes;
  uint of_source = 255u;
  uint of_query = 255u;
  float sum = 0.0;
  uint next[kEach] = LoadPiece(source, first, dim, 0, thread);
  uint next_query[kEach] = LoadPiece(query, 0, dim, 0, thread);
  for (uint from = 0; from < dim; from += kPiece) {
    of_source = StagePiece(next, 0, thread, of_source);
    of_query = StagePiece(next_query, kPiece, thread, of_query);
    next = LoadPiece(source, first, dim, from + kPiece, thread);
    next_query = LoadPiece(query, 0, dim, from + kPiece, thread);
    barrier();
    if (is_lane) sum = AddPieces(sum, 0, which * kPiece, dim, from, lane);
    barrier();
  }
  atomicMin(least_exponent[0], of_source);
  atomicMin(least_exponent[1], of_query);
  barrier();
  if (is_lane) {
    int quantum = Quantum(least_exponent[0]);
    Floats other = source;
    if (which == 1) other = query;
    uint other_first = which == 1 ? 0 : first;
    if (quantum + Quantum(least_exponent[which]) >= least) {
      sums[which][lane] = FromBits(floatBitsToUint(sum));
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
