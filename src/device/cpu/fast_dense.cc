#include <algorithm>

#include "base/check.h"
#include "base/format.h"
#include "device/cpu/fast_device.h"

namespace deltafin {
namespace {

// Rough costs on one core, for choosing pieces only: 20 GB/s of weights.
double MatMulRowNs(const Matrix& w, int64_t n, double fma_ns) {
  const auto bytes = static_cast<double>(w.row_bytes());
  return std::max(0.05 * bytes, fma_ns * static_cast<double>(w.cols * n));
}

}  // namespace

FastDevice::FastDevice(ThreadPool& pool, const KernelTable& kernels, std::string isa_name)
    : HostDevice(pool),
      kernels_(kernels),
      isa_name_(std::move(isa_name)),
      scratch_(pool.num_threads()) {}

std::string FastDevice::Describe() const {
  const int threads = pool().num_threads();
  return format("cpu ({}, {} thread{})", isa_name_, threads, threads == 1 ? "" : "s");
}

int64_t FastDevice::PackedFloats(WeightFormat format, int64_t cols) const {
  return RoundUpTo(cols, format == WeightFormat::kMxfp4 ? kMxGroup : kLanes) + kPackedPadding;
}

void FastDevice::PackRow(WeightFormat format, float* row, const float* src, int64_t begin,
                         int64_t end, int64_t cols) const {
  if (format == WeightFormat::kMxfp4) {
    kernels_.pack_mxfp4(row, src, begin, end, cols);
  } else {
    kernels_.pack_dense(row, src, begin, end, cols);
  }
}

bool FastDevice::IsPacked(WeightFormat format, int64_t cols) const {
  return format != WeightFormat::kMxfp4 && kernels_.dense_is_packed && cols % kLanes == 0;
}

RowsOf<const float> FastDevice::PackRows(WeightFormat format, const float* x, int64_t n,
                                         int64_t cols) {
  if (IsPacked(format, cols)) return {x, cols, nullptr};
  const int64_t stride = PackedFloats(format, cols);
  float* const packed = packed_.Reserve(n * stride);
  Parallel(n, 1, 0.5 * static_cast<double>(cols), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      PackRow(format, packed + p * stride, x + p * cols, 0, cols, cols);
    }
  });
  return {packed, stride, nullptr};
}

void FastDevice::MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) {
  for (int64_t p = 0; p < n; p += kPanelPositions) {
    const int64_t some = std::min(n - p, kPanelPositions);
    MatMulBlock(w, PackRows(w.format, x + p * w.cols, some, w.cols), {y + p * y_stride, y_stride},
                some);
  }
}

void FastDevice::MatMulBlock(const Matrix& w, const RowsOf<const float>& x, const RowsOf<float>& y,
                             int64_t n) {
  scratch_.Reserve(n <= kernels_.stream_positions ? 0 : kMatMulScratch);
  const int64_t scale_bytes = w.format == WeightFormat::kInt8 ? 4 : w.cols / kMxBlock;
  const int64_t unit = n <= kernels_.stream_positions ? kLanes : kPanelRows;
  Parallel(w.rows, unit, MatMulRowNs(w, n, kernels_.fma_ns), [&](int64_t begin, int64_t end) {
    const ThreadScratch::Lease scratch(scratch_);
    MatMulJob job;
    job.format = w.format;
    job.data = w.data + begin * w.row_bytes();
    job.scales = w.scales == nullptr ? nullptr : w.scales + begin * scale_bytes;
    job.rows = end - begin;
    job.cols = w.cols;
    job.n = n;
    job.x = x;
    job.y = {y.base + begin, y.stride, y.index};
    kernels_.matmul(job, scratch.data());
  });
}

void FastDevice::Add(float* dst, const float* src, int64_t count) {
  Parallel(count, kLanes, 0.2, [&](int64_t begin, int64_t end) {
    kernels_.add(dst + begin, src + begin, end - begin);
  });
}

void FastDevice::RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
                         int64_t stride, float eps) {
  Parallel(n, 1, 0.2 * static_cast<double>(dim), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      kernels_.rms_norm(y + p * stride, x + p * stride, host_w, dim, eps);
    }
  });
}

void FastDevice::ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                             int64_t num_snapshots, const float* prefix, const float* host_query,
                             int64_t n, int64_t dim, float eps) {
  constexpr int64_t kMostSources = 64;
  DF_CHECK(num_snapshots >= 1 && num_snapshots < kMostSources);
  const double ns = 0.3 * static_cast<double>(dim * (num_snapshots + 1));
  Parallel(n, 1, ns, [&](int64_t begin, int64_t end) {
    const float* sources[kMostSources];
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t i = 0; i < num_snapshots; ++i) {
        sources[i] = snapshots + i * snapshot_stride + p * dim;
      }
      sources[num_snapshots] = prefix + p * dim;
      kernels_.residual_mix(out + p * dim, sources, num_snapshots + 1, host_query, dim, eps);
    }
  });
}

void FastDevice::SituGlu(float* out, const float* gate, const float* up, int64_t count,
                         SituParams params) {
  Parallel(count, kLanes, 2.0, [&](int64_t begin, int64_t end) {
    kernels_.situ(out + begin, gate + begin, up + begin, end - begin, params.beta,
                  params.linear_beta);
  });
}

void FastDevice::SigmoidGate(float* y, const float* gate, int64_t count) {
  Parallel(count, kLanes, 0.7, [&](int64_t begin, int64_t end) {
    kernels_.sigmoid_gate(y + begin, gate + begin, end - begin);
  });
}

}  // namespace deltafin
