// Operators at the sizes of Kimi K3 with something to work on, for benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "device/device.h"

namespace deltafin {

// Weights that mean nothing and are sane in every format (finite, no subnormals): every Take is
// another part of `bytes` until they are used up, then the first again. No cache holds as much as
// there is by default.
class WeightArena {
 public:
  explicit WeightArena(int64_t bytes = int64_t{1} << 30);
  Matrix Take(WeightFormat format, int64_t rows, int64_t cols);

 private:
  AlignedBuffer<std::byte> data_;
  AlignedBuffer<std::byte> scales_;    // of MXFP4
  AlignedBuffer<float> float_scales_;  // of int8
  int64_t bytes_;
  int64_t at_ = 0;
};

// Runs one operator. What it reads first (weights, states, caches) is cold at every Run, unless the
// arena is small.
class OperatorCase {
 public:
  virtual ~OperatorCase() = default;
  virtual void Run() = 0;
  double bytes() const { return bytes_; }  // of weights, states or caches, read (and written)
  double flops() const { return flops_; }

 protected:
  double bytes_ = 0;
  double flops_ = 0;
};

// y = W x for n positions.
std::unique_ptr<OperatorCase> MakeMatMulCase(Device& device, WeightArena& arena,
                                             WeightFormat format, int64_t rows, int64_t cols,
                                             int64_t n);
// 16 experts of K3 with n positions each.
std::unique_ptr<OperatorCase> MakeExpertCase(Device& device, WeightArena& arena, int64_t n);
// n steps of the recurrence of all heads of one layer of K3. `bytes` counts reading and writing.
std::unique_ptr<OperatorCase> MakeKdaCase(Device& device, int64_t n);
// n positions attend to `context` earlier ones in one layer of K3.
std::unique_ptr<OperatorCase> MakeMlaCase(Device& device, CacheFormat format, int64_t context,
                                          int64_t n);

}  // namespace deltafin
