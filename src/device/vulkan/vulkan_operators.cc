// The dense operators of the GPU backend: how they are recorded.
#include <algorithm>
#include <climits>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "device/vulkan/lane_layout.h"
#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

// Values of activations, and of results, that one turn takes.
constexpr int64_t kTurnFloats = int64_t{1} << 24;
// Positions that take a product about as long as reading its weights does.
constexpr int64_t kReadTogether = 16;
// Of weights that join a product before it is asked whether to hand over what was recorded.
constexpr uint64_t kMostJoinedBytes = uint64_t{256} << 20;
// shaders/residual_mix.comp
constexpr int64_t kMostSources = 16;
// A part of what stays on the GPU that is set there with the rest.
constexpr uint64_t kMostSetBytes = uint64_t{1} << 20;

// Push constants of shaders/norm.comp.
struct NormJob {
  VkDeviceAddress y;
  VkDeviceAddress x;
  VkDeviceAddress weights = 0;
  VkDeviceAddress gate = 0;
  VkDeviceAddress laid_out = 0;
  VkDeviceAddress quanta = 0;
  uint32_t dim;
  uint32_t stride;
  uint32_t dim_bits;
  uint32_t eps;
  int32_t least;
  uint32_t unused = 0;
};

}  // namespace

// ---- weights ----

const HeldMatrix* VulkanDevice::Place(const Matrix& w) {
  if (w.id == 0 || is_lost_) return nullptr;
  try {
    HeldWeights& weights = IsExpertId(w.id) ? experts_ : spine_;
    const HeldMatrix* held = weights.Find(w.id);
    if (held != nullptr || w.data == nullptr) return held;
    held = weights.Add(w);
    lacked_memory_ = lacked_memory_ || held == nullptr;
    return held;
  } catch (const Error& error) {
    Lose(error.what());
    return nullptr;
  }
}

int VulkanDevice::LeastQuantum(const Matrix& w, const HeldMatrix& held) const {
  if (flushes_subnormals_) return kLeastNormal - std::min(held.quantum, 0);
  if (w.format != WeightFormat::kMxfp4) return INT_MIN;
  // A subnormal scale, and activations that cannot be scaled.
  return held.quantum == kNoQuantum ? INT_MAX : kNoQuantum + 1;
}

int VulkanDevice::LeastProduct() const { return flushes_subnormals_ ? kLeastNormal : INT_MIN; }

bool VulkanDevice::IsSafe(const Matrix& w, const HeldMatrix& held, const float* x, int64_t floats) {
  if (checked_x_ != x || checked_floats_ != floats || checked_format_ != w.format) {
    checked_quantum_ = QuantumOf(w.format, x, floats);
    checked_x_ = x;
    checked_floats_ = floats;
    checked_format_ = w.format;
  }
  return checked_quantum_ >= LeastQuantum(w, held);
}

// ---- products ----

void VulkanDevice::MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) {
  const HeldMatrix* held = Place(w);
  std::optional<HeldMatrix> in_place;
  if (held == nullptr && InPlace(w)) held = &in_place.emplace(GuardedInPlace(w));
  if (held != nullptr && !has_operators_) {
    const Rows in = Whole(x, n * w.cols);
    if (pending_.Overlaps(in.begin(), in.end())) Settle();
    if (is_lost_ || !IsSafe(w, *held, x, n * w.cols)) held = nullptr;
  }
  const int64_t most =
      std::clamp<int64_t>(kTurnFloats / std::max(LaidOutInputFloats(w.cols), w.rows), 1, n);
  for (int64_t p = 0; p < n; p += most) {
    const int64_t some = std::min(most, n - p);
    const float* const in = x + p * w.cols;
    float* const out = y + p * y_stride;
    if (held == nullptr || is_lost_ || !GpuMatMul(w, *held, in, out, y_stride, some)) {
      HostMatMul(w, in, out, y_stride, some);
    }
  }
}

bool VulkanDevice::GpuMatMul(const Matrix& w, const HeldMatrix& held, const float* x, float* y,
                             int64_t y_stride, int64_t n) {
  const Rows in = Whole(x, n * w.cols);
  const Rows out{y, n, w.rows, y_stride};
  const auto again = [this, w, x, y, y_stride, n] {
    Matrix matrix = w;
    // The piece of the spine that it was may have left the host's memory.
    if (!IsExpertId(w.id) && origin_ != nullptr) matrix.data = nullptr;
    std::vector<std::byte> bytes;
    host_->MatMul(ReadAgain(matrix, bytes), x, y, y_stride, n);
  };
  if (n == 1 && ContinueProduct(w, held, in, out)) {
    log_.emplace_back(again);
    return true;
  }
  const auto record = [&] {
    ProductJob job;
    job.weights = held.weights;
    job.scales = held.scales;
    job.plain_x = AddressOf(in);
    const LaidOut laid_out =
        LayOut({x, n, w.cols, w.cols}, job.plain_x, w.cols, w.format == WeightFormat::kMxfp4);
    const DeviceRange reads[] = {laid_out.values, laid_out.quanta};
    Order(reads, {});
    job.x = laid_out.values.begin;
    job.quanta = laid_out.quanta.begin;
    job.y = AddressOf(out);
    job.rows = U32(w.rows);
    job.cols = U32(w.cols);
    job.n = U32(n);
    job.y_stride = U32(y_stride);
    job.least = LeastQuantum(w, held);
    commands_bytes_ += static_cast<uint64_t>(w.rows * w.row_bytes() * (1 + n / kReadTogether));
    if (held.is_in_place) {
      RecordInPlace(job, 0, 1, job.n, has_operators_ && job.least != INT_MIN);
      return;
    }
    AddProduct(w.format, job, static_cast<uint64_t>(w.rows * LaidOutRowBytes(w.format, w.cols)));
  };
  return OnGpu({in}, {out}, record, again);
}

// Most products are pieces of a matrix, one after the other: of those only what they add is noted.
bool VulkanDevice::ContinueProduct(const Matrix& w, const HeldMatrix& held, const Rows& in,
                                   const Rows& out) {
  if (!next_product_ || next_product_->format != w.format || w.format == WeightFormat::kInt8 ||
      next_product_->weights_end != held.weights) {
    return false;
  }
  ProductJob& last = next_product_->job;
  const DeviceRange range = RangeOf(out);
  const uint64_t end = range.begin + range.bytes;
  if (last.n != 1 || last.cols != U32(w.cols) || last.plain_x != AddressOf(in) ||
      last.y + last.rows * sizeof(float) != range.begin || read_.Overlaps(range.begin, end) ||
      written_.Overlaps(range.begin, end) || kept_.Overlaps(out.begin(), out.end()) ||
      next_product_->joined_bytes >= kMostJoinedBytes) {
    return false;
  }
  const auto bytes = static_cast<uint64_t>(w.rows * LaidOutRowBytes(w.format, w.cols));
  last.rows += U32(w.rows);
  last.least = std::max(last.least, LeastQuantum(w, held));
  next_product_->weights_end += bytes;
  next_product_->joined_bytes += bytes;
  commands_bytes_ += bytes;
  written_.Add(range.begin, end);
  Wrote({out}, false);
  return true;
}

void VulkanDevice::AddProduct(WeightFormat format, const ProductJob& job, uint64_t weight_bytes) {
  const VkDeviceAddress weights_end = job.weights + weight_bytes;
  if (next_product_) {
    ProductJob& last = next_product_->job;
    if (next_product_->format == format && next_product_->weights_end == job.weights &&
        last.plain_x == job.plain_x && last.x == job.x && last.n == job.n &&
        last.cols == job.cols && last.y_stride == job.y_stride &&
        last.y + last.rows * sizeof(float) == job.y && format != WeightFormat::kInt8) {
      last.rows += job.rows;
      last.least = std::max(last.least, job.least);
      next_product_->weights_end = weights_end;
      next_product_->joined_bytes = 0;
      return;
    }
  }
  Commands();  // what comes before it
  next_product_ = NextProduct{format, job, weights_end, 0};
}

void VulkanDevice::RecordProduct() {
  if (!next_product_) return;
  const NextProduct next = *next_product_;
  next_product_.reset();
  commands_->Product(next.format, next.job);
  if (has_operators_ && next.job.least != INT_MIN) {
    commands_->ExactProduct(next.format, next.job);
  }
}

void VulkanDevice::HostMatMul(const Matrix& w, const float* x, float* y, int64_t y_stride,
                              int64_t n) {
  OnHost({Whole(x, n * w.cols)}, {{y, n, w.rows, y_stride}}, [&] {
    std::vector<std::byte> bytes;
    host_->MatMul(ReadAgain(w, bytes), x, y, y_stride, n);
  });
}

VulkanDevice::LaidOut VulkanDevice::TakeLaidOut(int64_t n, int64_t cols) {
  const uint64_t bytes = static_cast<uint64_t>(n * LaidOutInputFloats(cols)) * sizeof(float);
  const uint64_t quanta_bytes = static_cast<uint64_t>(n) * sizeof(int32_t);
  return {{scratch_.Take(bytes).address(), bytes},
          {scratch_.Take(quanta_bytes).address(), quanta_bytes}};
}

VulkanDevice::LaidOut VulkanDevice::LayOut(const Rows& x, VkDeviceAddress address, int64_t cols,
                                           bool is_mxfp4) {
  for (const Input& input : inputs_) {
    if (input.x.data == x.data && input.x.n >= x.n && input.cols == cols &&
        input.is_mxfp4 == is_mxfp4) {
      return input.laid_out;
    }
  }
  struct Job {
    VkDeviceAddress x;
    VkDeviceAddress laid_out;
    VkDeviceAddress quanta;
    uint32_t cols;
    uint32_t unused = 0;
  };
  const LaidOut laid_out = TakeLaidOut(x.n, cols);
  const DeviceRange read{address, static_cast<uint64_t>(x.n * cols) * sizeof(float)};
  const DeviceRange writes[] = {laid_out.values, laid_out.quanta};
  Order({&read, 1}, writes);
  Commands().Run(is_mxfp4 ? "lay_out_mxfp4" : "lay_out",
                 Job{address, laid_out.values.begin, laid_out.quanta.begin, U32(cols)}, U32(x.n));
  if (x.data != nullptr) inputs_.push_back({x, cols, is_mxfp4, laid_out});
  return laid_out;
}

// ---- dense ----

void VulkanDevice::InPlace(const char* shader, float* y, const float* other, int64_t count,
                           const std::function<void()>& run) {
  const Rows result = Whole(y, count);
  const Rows second = Whole(other, count);
  const auto record = [&] {
    const VkDeviceAddress first = AddressOf(result);
    Commands().RunArithmetic(
        shader, ElementwiseJob{first, first, AddressOf(second), U32(count), 0, 0}, GroupsOf(count));
  };
  Operator({result, second}, result, record, run);
}

void VulkanDevice::Add(float* dst, const float* src, int64_t count) {
  InPlace("add", dst, src, count, [this, dst, src, count] { host_->Add(dst, src, count); });
}

void VulkanDevice::SigmoidGate(float* y, const float* gate, int64_t count) {
  InPlace("sigmoid_gate", y, gate, count,
          [this, y, gate, count] { host_->SigmoidGate(y, gate, count); });
}

void VulkanDevice::SituGlu(float* out, const float* gate, const float* up, int64_t count,
                           SituParams params) {
  const Rows result = Whole(out, count);
  const Rows first = Whole(gate, count);
  const Rows second = Whole(up, count);
  Operator(
      {first, second}, result,
      [&] {
        Commands().RunArithmetic(
            "situ_glu",
            ElementwiseJob{AddressOf(result), AddressOf(first), AddressOf(second), U32(count),
                           Bits(params.beta), Bits(params.linear_beta)},
            GroupsOf(count));
      },
      [this, out, gate, up, count, params] { host_->SituGlu(out, gate, up, count, params); });
}

void VulkanDevice::Norm(float* y, const float* x, const float* gate, const float* host_w, int64_t n,
                        int64_t dim, int64_t stride, float eps) {
  const Rows in{x, n, dim, stride};
  const Rows out{y, n, dim, stride};
  const Rows gates = Whole(gate == nullptr ? x : gate, gate == nullptr ? 1 : n * dim);
  const Operands reads = gate == nullptr ? Operands{in} : Operands{in, gates};
  const HostVector vector = VectorOf(host_w, dim);
  const auto run = [this, y, x, gate, w = vector, n, dim, stride, eps] {
    if (gate == nullptr) {
      host_->RmsNorm(y, x, w.data(), n, dim, stride, eps);
    } else {
      host_->GatedRmsNorm(y, gate, w.data(), n, dim, eps);
    }
  };
  // Whole rows are what products read next.
  const bool lays_out = gate == nullptr && stride == dim;
  LaidOut laid_out;
  const auto record = [&] {
    NormJob job{AddressOf(out),
                AddressOf(in),
                AddressOf(vector),
                AddressOf(gates),
                0,
                0,
                U32(dim),
                U32(stride),
                Bits(static_cast<float>(dim)),
                Bits(eps),
                LeastProduct()};
    if (lays_out) {
      laid_out = TakeLaidOut(n, dim);
      const DeviceRange writes[] = {laid_out.values, laid_out.quanta};
      Order({}, writes);
      job.laid_out = laid_out.values.begin;
      job.quanta = laid_out.quanta.begin;
    }
    const char* const kind = gate == nullptr ? "norm" : "gated_norm";
    Commands().RunArithmetic(lays_out ? "laid_out_norm" : kind, job, U32(n));
  };
  if (n <= kMostGroups && IsThere(reads) && OnGpu(reads, {out}, record, run)) {
    if (lays_out && !is_settled_) inputs_.push_back({Whole(y, n * dim), dim, false, laid_out});
    return;
  }
  OnHost(reads, {out}, run);
}

void VulkanDevice::RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
                           int64_t stride, float eps) {
  Norm(y, x, nullptr, host_w, n, dim, stride, eps);
}

void VulkanDevice::GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows,
                                int64_t dim, float eps) {
  Norm(y, y, gate, host_w, rows, dim, dim, eps);
}

void VulkanDevice::L2Normalize(float* x, int64_t rows, int64_t dim, float scale) {
  constexpr float kEps = 1e-6f;
  const Rows all = Whole(x, rows * dim);
  const auto run = [this, x, rows, dim, scale] { host_->L2Normalize(x, rows, dim, scale); };
  const auto record = [&] {
    const VkDeviceAddress address = AddressOf(all);
    const NormJob job{address,    address,       0, 0, 0, 0, U32(dim), U32(dim), Bits(scale),
                      Bits(kEps), LeastProduct()};
    Commands().RunArithmetic("l2_norm", job, U32(rows));
  };
  if (rows <= kMostGroups && IsThere({all}) && OnGpu({all}, {all}, record, run)) return;
  OnHost({all}, {all}, run);
}

void VulkanDevice::ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                               int64_t num_snapshots, const float* prefix, const float* host_query,
                               int64_t n, int64_t dim, float eps) {
  struct ScoresJob {
    VkDeviceAddress scores;
    VkDeviceAddress snapshots;
    VkDeviceAddress prefix;
    VkDeviceAddress query;
    uint32_t snapshot_stride;
    uint32_t num_snapshots;
    uint32_t dim;
    uint32_t dim_bits;
    uint32_t eps;
    int32_t least;
  };
  struct Job {
    VkDeviceAddress result;
    VkDeviceAddress scores;
    VkDeviceAddress snapshots;
    VkDeviceAddress prefix;
    uint32_t snapshot_stride;
    uint32_t num_snapshots;
    uint32_t dim;
    uint32_t unused = 0;
  };
  Operands reads{Whole(prefix, n * dim)};
  for (int64_t i = 0; i < num_snapshots; ++i) {
    reads.push_back(Whole(snapshots + i * snapshot_stride, n * dim));
  }
  const Rows result = Whole(out, n * dim);
  const HostVector vector = VectorOf(host_query, dim);
  const auto run = [this, out, snapshots, snapshot_stride, num_snapshots, prefix, query = vector, n,
                    dim, eps] {
    host_->ResidualMix(out, snapshots, snapshot_stride, num_snapshots, prefix, query.data(), n, dim,
                       eps);
  };
  const auto record = [&] {
    const int64_t sources = num_snapshots + 1;
    const auto bytes = static_cast<uint64_t>(n * sources) * sizeof(float);
    const DeviceRange scores{scratch_.Take(bytes).address(), bytes};
    const VkDeviceAddress first = AddressOf(reads[1]);
    const VkDeviceAddress last = AddressOf(reads[0]);
    Order({}, {&scores, 1});
    Commands().RunArithmetic("residual_scores",
                             ScoresJob{scores.begin, first, last, AddressOf(vector),
                                       U32(snapshot_stride), U32(num_snapshots), U32(dim),
                                       Bits(static_cast<float>(dim)), Bits(eps), LeastProduct()},
                             U32(sources), U32(n));
    Order({&scores, 1}, {});
    Commands().RunArithmetic("residual_mix",
                             Job{AddressOf(result), scores.begin, first, last, U32(snapshot_stride),
                                 U32(num_snapshots), U32(dim)},
                             U32((dim + kGroupThreads - 1) / kGroupThreads), U32(n));
  };
  const bool fits = n <= kMostGroups && num_snapshots < kMostSources;
  if (fits && IsThere(reads) && OnGpu(reads, {result}, record, run)) return;
  OnHost(reads, {result}, run);
}

void VulkanDevice::Copy(void* dst, const void* src, size_t bytes) {
  constexpr size_t kFloat = sizeof(float);
  const auto count = static_cast<int64_t>((bytes + kFloat - 1) / kFloat);
  const Rows from = Whole(static_cast<const float*>(src), count);
  const Rows to = Whole(static_cast<const float*>(dst), count);
  const auto run = [this, dst, src, bytes] { host_->Copy(dst, src, bytes); };
  const bool is_apart = to.end() <= from.begin() || from.end() <= to.begin();
  const bool into_kept = kept_.Overlaps(to.begin(), to.end());
  const bool is_wanted = IsThere({from}) || (into_kept && bytes <= kMostSetBytes && !is_lost_);
  if (is_apart && bytes % kFloat == 0 && is_wanted) {
    const auto record = [&] {
      uint64_t to_offset = 0;
      uint64_t from_offset = 0;
      const GpuBuffer& to_shadow = ShadowOf(to, &to_offset);
      const GpuBuffer& from_shadow = ShadowOf(from, &from_offset);
      Commands().Copy(to_shadow, to_offset, from_shadow, from_offset, bytes);
    };
    KeptStep step;
    if (kept_.Contains(from.begin(), from.end())) {
      step.write = to;
      step.from = from;
      step.again = [run](const float*) { run(); };
    } else if (into_kept) {
      step.write = to;
      step.inputs = {from};
      step.again = [dst, bytes](const float* values) { std::memcpy(dst, values, bytes); };
    }
    const Operands writes = step.again ? Operands{} : Operands{to};
    if (OnGpuKeeping({from}, writes, std::move(step), record, run)) return;
  }
  if (into_kept && !pending_.Overlaps(from.begin(), from.end())) {
    Settle();
    DropKept(to.begin(), to.end());
  }
  OnHost({from}, {to}, run);
}

}  // namespace deltafin
