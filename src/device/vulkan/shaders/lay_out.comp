// Activations as product.comp reads them (lane_layout.h), a workgroup for each row: blocks of 128
// columns, lane after lane, each with eight floats; for MXFP4 in their order, times 2^14, which
// makes up for its weights. Also the power of two that all values of the row are multiples of.
//   MXFP4
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "laid_out.glsl"

const uint kThreads = 256;
layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results {
  uint at[];
};
layout(push_constant, std430) uniform Job {
  Floats x;
  Results laid_out;
  Results quanta;
  uint cols;
};

const uint kAhead = 8;  // loads that are under way at a time
const int kNoQuantum = -100000;
shared uint least_exponent;
shared uint most_exponent;

void main() {
  uint thread = gl_LocalInvocationID.x;
  uint row = gl_WorkGroupID.x;
  uint padded = Padded(cols);
  if (thread == 0) {
    least_exponent = 255u;
    most_exponent = 0u;
  }
  barrier();
  uint least = 255u;
  uint most = 0u;
  for (uint first = thread; first < padded; first += kAhead * kThreads) {
    uint values[kAhead];
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      uint col = first + j * kThreads;
      values[j] = col < cols ? x.at[row * cols + col] : 0u;
    }
    [[unroll]] for (uint j = 0; j < kAhead; ++j) {
      uint col = first + j * kThreads;
      uint bits = values[j];
      uint exponent = bits >> 23 & 255u;
      if ((bits & 0x7fffffffu) != 0u) {
        least = min(least, exponent);
        most = max(most, exponent);
      }
      if (col >= padded) continue;
#ifdef MXFP4
      precise float scaled = uintBitsToFloat(bits) * 16384.0;
      laid_out.at[row * padded + col] = floatBitsToUint(scaled);
#else
      laid_out.at[row * padded + PlaceOf(col)] = bits;
#endif
    }
  }
  atomicMin(least_exponent, least);
  atomicMax(most_exponent, most);
  barrier();
  if (thread == 0) {
    bool none = least_exponent == 0u;
#ifdef MXFP4
    none = none || most_exponent > 240u;  // 2^14 times as much may be infinite
#endif
    quanta.at[row] = uint(none ? kNoQuantum : int(least_exponent) - 150);
  }
}
