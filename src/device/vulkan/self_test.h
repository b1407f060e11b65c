// Whether a GPU computes what the CPU computes.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/vulkan/gpu.h"

namespace deltafin {

struct GpuVerdict {
  std::string problem;              // why it cannot be used; "" when it can
  bool flushes_subnormals = false;  // takes values below 2^-126 for zero
  bool has_operators = false;       // its double precision is right (shaders/exact.glsl)
  std::string arithmetic;           // for people: "fused multiply-add"
};

// Whether fused multiply-adds, sums and products have the CPU's bits, with the arithmetic that the
// GPU is set to: those of normal numbers, and those with a subnormal among operands and results.
struct ArithmeticResult {
  bool normals = true;
  bool subnormals = true;
};
ArithmeticResult TestArithmetic(Gpu& gpu);

// Finds the arithmetic that gives the CPU's bits (a fused multiply-add, sums and products of
// thousands of values, subnormals among them), lets `gpu` use it from now on, and multiplies small
// matrices of every format with it and with `host`; so with the operators that are computed in
// double precision. Never throws because of the GPU.
GpuVerdict TestGpu(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool);

}  // namespace deltafin
