// The operators of the GPU backend: how they are recorded, and what is left to the host.
#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "base/check.h"
#include "device/vulkan/lane_layout.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

constexpr int kLeastNormal = -126;  // exponent of a float
// Values of activations, and of results, that one turn takes.
constexpr int64_t kTurnFloats = int64_t{1} << 24;
// shaders/residual_mix.comp
constexpr int64_t kMostSources = 16;
constexpr int64_t kMostGroups = 65'535;
// Workgroups that are enough to fill a GPU.
constexpr int64_t kEnoughGroups = 4'096;
constexpr int64_t kThreads = 128;  // of a workgroup

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
uint32_t U32(int64_t value) { return static_cast<uint32_t>(value); }

uint32_t GroupsOf(int64_t count) {
  return U32(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kEnoughGroups));
}

std::vector<float> CopyOf(const float* from, int64_t count) { return {from, from + count}; }

// Push constants of shaders/elementwise.comp.
struct ElementwiseJob {
  VkDeviceAddress result;
  VkDeviceAddress first;
  VkDeviceAddress second;
  uint32_t count;
  uint32_t beta;
  uint32_t linear_beta;
  uint32_t unused = 0;
};

}  // namespace

// ---- weights ----

const HeldMatrix* VulkanDevice::Place(const Matrix& w) {
  if (w.id == 0 || is_lost_) return nullptr;
  try {
    HeldWeights& weights = IsExpertId(w.id) ? experts_ : spine_;
    const HeldMatrix* held = weights.Find(w.id);
    return held != nullptr || w.data == nullptr ? held : weights.Add(w);
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
    Commands().Product(w.format, job);
    if (has_operators_ && job.least != INT_MIN) Commands().ExactProduct(w.format, job);
    commands_bytes_ += static_cast<uint64_t>(w.rows * w.row_bytes());
  };
  const auto again = [this, w, x, y, y_stride, n] {
    Matrix matrix = w;
    // The piece of the spine that it was may have left the host's memory.
    if (!IsExpertId(w.id) && origin_ != nullptr) matrix.data = nullptr;
    std::vector<std::byte> bytes;
    host_->MatMul(ReadAgain(matrix, bytes), x, y, y_stride, n);
  };
  return OnGpu({in}, {out}, record, again);
}

void VulkanDevice::HostMatMul(const Matrix& w, const float* x, float* y, int64_t y_stride,
                              int64_t n) {
  OnHost({Whole(x, n * w.cols)}, {{y, n, w.rows, y_stride}}, [&] {
    std::vector<std::byte> bytes;
    host_->MatMul(ReadAgain(w, bytes), x, y, y_stride, n);
  });
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
  const uint64_t bytes = static_cast<uint64_t>(x.n * LaidOutInputFloats(cols)) * sizeof(float);
  const uint64_t quanta_bytes = static_cast<uint64_t>(x.n) * sizeof(int32_t);
  const LaidOut laid_out{{scratch_.Take(bytes).address(), bytes},
                         {scratch_.Take(quanta_bytes).address(), quanta_bytes}};
  const DeviceRange read{address, static_cast<uint64_t>(x.n * cols) * sizeof(float)};
  const DeviceRange writes[] = {laid_out.values, laid_out.quanta};
  Order({&read, 1}, writes);
  Commands().Run(is_mxfp4 ? "lay_out_mxfp4" : "lay_out",
                 Job{address, laid_out.values.begin, laid_out.quanta.begin, U32(cols)}, U32(x.n));
  if (x.data != nullptr) inputs_.push_back({x, cols, is_mxfp4, laid_out});
  return laid_out;
}

// ---- experts ----

bool VulkanDevice::PlaceExpert(const ExpertWeights& weights) {
  const Matrix& w1 = weights.w1;
  return w1.id != 0 && Place(w1) != nullptr && Place(weights.w3) != nullptr &&
         Place(weights.w2) != nullptr;
}

void VulkanDevice::ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                             int64_t latent, SituParams params) {
  std::vector<ExpertTask> of_gpu;
  std::vector<ExpertTask> of_host;
  for (const ExpertTask& task : tasks) {
    (PlaceExpert(task.weights) ? of_gpu : of_host).push_back(task);
  }
  if (!of_gpu.empty() && !of_host.empty()) {
    // Both compute at the same time.
    const uint64_t begin = Whole(z, 1).begin();
    if (pending_.Overlaps(begin, begin + sizeof(float))) Settle();
  }
  if (!of_gpu.empty() && !is_lost_ && !has_operators_) {
    ExpertsByProducts(of_gpu, z, y, latent, params);
  } else if (!of_gpu.empty() && !GpuExperts(of_gpu, z, y, latent, params)) {
    of_host.insert(of_host.end(), of_gpu.begin(), of_gpu.end());
  }
  if (of_host.empty()) return;
  Operands reads;
  Operands writes;
  for (const ExpertTask& task : of_host) {
    for (int64_t i = 0; i < task.num_rows; ++i) {
      reads.push_back(Whole(z + task.in_rows[i] * latent, latent));
      writes.push_back(Whole(y + task.out_rows[i] * latent, latent));
    }
  }
  OnHost(reads, writes, [&] {
    ExpertCall call{of_host, {}, z, y, latent, params};
    RunExperts(call);
  });
}

// The data of some may have been on a GPU that was lost.
void VulkanDevice::RunExperts(ExpertCall& call) {
  std::vector<std::vector<std::byte>> bytes;
  for (ExpertTask& task : call.tasks) {
    for (Matrix* w : {&task.weights.w1, &task.weights.w3, &task.weights.w2}) {
      if (w->data == nullptr) *w = ReadAgain(*w, bytes.emplace_back());
    }
  }
  host_->ExpertMlp(call.tasks, call.z, call.y, call.latent, call.params);
}

bool VulkanDevice::GpuExperts(std::span<const ExpertTask> tasks, const float* z, float* y,
                              int64_t latent, SituParams params) {
  const auto call = std::make_shared<ExpertCall>();
  *call = {{tasks.begin(), tasks.end()}, {}, z, y, latent, params};
  const ExpertWeights& first = tasks[0].weights;
  int64_t most_row = 0;
  Operands writes;
  for (const ExpertTask& task : tasks) {
    const ExpertWeights& weights = task.weights;
    DF_CHECK(weights.w1.cols == latent && weights.w2.rows == latent);
    DF_CHECK(weights.w1.rows == first.w1.rows && weights.w2.cols == first.w1.rows);
    DF_CHECK(weights.w1.format == first.w1.format && weights.w2.format == first.w1.format);
    for (int64_t i = 0; i < task.num_rows; ++i) {
      most_row = std::max<int64_t>(most_row, task.in_rows[i]);
      writes.push_back(Whole(y + task.out_rows[i] * latent, latent));
    }
    call->rows.insert(call->rows.end(), task.in_rows, task.in_rows + task.num_rows);
    call->rows.insert(call->rows.end(), task.out_rows, task.out_rows + task.num_rows);
  }
  const int32_t* rows = call->rows.data();
  for (ExpertTask& task : call->tasks) {
    task.in_rows = rows;
    task.out_rows = rows + task.num_rows;
    rows += 2 * task.num_rows;
  }
  const bool recorded = OnGpu(
      {Whole(z, (most_row + 1) * latent)}, writes, [&] { RecordExperts(*call); },
      [this, call] { RunExperts(*call); });
  if (recorded && !is_lost_) expert_calls_.push_back(call);
  return recorded;
}

// w1 and w3 of all experts, SiTU, and w2 of all.
void VulkanDevice::RecordExperts(const ExpertCall& call) {
  const WeightFormat weights = call.tasks[0].weights.w1.format;
  const bool is_mxfp4 = weights == WeightFormat::kMxfp4;
  const int64_t latent = call.latent;
  const int64_t width = call.tasks[0].weights.w1.rows;
  const auto tasks = static_cast<int64_t>(call.tasks.size());
  const int64_t all_rows = std::ssize(call.rows) / 2;
  int64_t most_n = 0;
  int32_t most_in = 0;
  for (const ExpertTask& task : call.tasks) {
    most_n = std::max(most_n, task.num_rows);
    most_in = std::max(most_in, *std::max_element(task.in_rows, task.in_rows + task.num_rows));
  }
  const DeviceRange lists = Constant(call.rows.data(), call.rows.size() * sizeof(int32_t));
  const VkDeviceAddress z = AddressOf(call.z, (most_in + 1) * latent);
  const LaidOut laid_out_z = LayOut({call.z, most_in + 1, latent, latent}, z, latent, is_mxfp4);
  const uint64_t hidden_bytes = static_cast<uint64_t>(all_rows * width) * sizeof(float);
  const DeviceRange gate{scratch_.Take(hidden_bytes).address(), hidden_bytes};
  const DeviceRange up{scratch_.Take(hidden_bytes).address(), hidden_bytes};

  std::vector<ProductJob> jobs;
  bool needs_exact = false;
  const auto add = [&](const Matrix& w, int64_t n) -> ProductJob& {
    const HeldMatrix& held = *experts_.Find(w.id);
    ProductJob& job = jobs.emplace_back();
    job.weights = held.weights;
    job.scales = held.scales;
    job.rows = U32(w.rows);
    job.cols = U32(w.cols);
    job.n = U32(n);
    job.y_stride = U32(w.rows);
    job.least = LeastQuantum(w, held);
    needs_exact |= job.least != INT_MIN;
    commands_bytes_ += static_cast<uint64_t>(w.rows * w.row_bytes());
    return job;
  };
  const auto run = [&](size_t first, int64_t count, const LaidOut& x,
                       std::span<const DeviceRange> writes) {
    const DeviceRange table =
        Constant(jobs.data() + first, static_cast<size_t>(count) * sizeof(ProductJob));
    const DeviceRange reads[] = {table, lists, x.values, x.quanta};
    Order(reads, writes);
    const int64_t usual_n = (all_rows + tasks - 1) / tasks;
    Commands().Products(weights, table.begin, U32(count), jobs[first], U32(usual_n), U32(most_n));
    if (needs_exact) Commands().ExactProducts(weights, table.begin, U32(count), U32(most_n));
  };

  int64_t row = 0;
  for (const ExpertTask& task : call.tasks) {
    for (const auto& [w, y] : {std::pair{&task.weights.w1, gate}, {&task.weights.w3, up}}) {
      ProductJob& job = add(*w, task.num_rows);
      job.x = laid_out_z.values.begin;
      job.plain_x = z;
      job.quanta = laid_out_z.quanta.begin;
      job.y = y.begin + static_cast<uint64_t>(row * width) * sizeof(float);
      job.in_rows = lists.begin + static_cast<uint64_t>(2 * row) * sizeof(int32_t);
      job.lists = ProductJob::kInRows;
    }
    row += task.num_rows;
  }
  const DeviceRange hidden[] = {gate, up};
  run(0, 2 * tasks, laid_out_z, hidden);
  Order(hidden, {&gate, 1});
  Commands().Run("situ_glu",
                 ElementwiseJob{gate.begin, gate.begin, up.begin, U32(all_rows * width),
                                Bits(call.params.beta), Bits(call.params.linear_beta)},
                 GroupsOf(all_rows * width));
  const LaidOut laid_out = LayOut({nullptr, all_rows, width, width}, gate.begin, width, is_mxfp4);
  const VkDeviceAddress y = AddressOf(call.y, 1);
  row = 0;
  for (const ExpertTask& task : call.tasks) {
    ProductJob& job = add(task.weights.w2, task.num_rows);
    job.x = laid_out.values.begin +
            static_cast<uint64_t>(row * LaidOutInputFloats(width)) * sizeof(float);
    job.plain_x = gate.begin + static_cast<uint64_t>(row * width) * sizeof(float);
    job.quanta = laid_out.quanta.begin + static_cast<uint64_t>(row) * sizeof(int32_t);
    job.y = y;
    job.out_rows = lists.begin + static_cast<uint64_t>(2 * row + task.num_rows) * sizeof(int32_t);
    job.lists = ProductJob::kOutRows;
    row += task.num_rows;
  }
  run(static_cast<size_t>(2 * tasks), tasks, laid_out, {});
}

void VulkanDevice::ExpertsByProducts(std::span<const ExpertTask> tasks, const float* z, float* y,
                                     int64_t latent, SituParams params) {
  const int64_t width = tasks[0].weights.w1.rows;
  int64_t rows = 0;
  for (const ExpertTask& task : tasks) rows += task.num_rows;
  const size_t bytes = static_cast<size_t>(rows * 2 * (latent + width)) * sizeof(float);
  if (!expert_values_ || expert_values_->size_bytes() < bytes) {
    expert_values_.reset();
    expert_values_.emplace(*this, bytes);
  }
  float* const inputs = expert_values_->floats();  // [rows, latent]
  float* const outputs = inputs + rows * latent;   // [rows, latent]
  float* const gate = outputs + rows * latent;     // [rows, width]
  float* const up = gate + rows * width;           // [rows, width]
  int64_t row = 0;
  for (const ExpertTask& task : tasks) {
    for (int64_t i = 0; i < task.num_rows; ++i) {
      Copy(inputs + (row + i) * latent, z + task.in_rows[i] * latent,
           static_cast<size_t>(latent) * sizeof(float));
    }
    MatMul(task.weights.w1, inputs + row * latent, gate + row * width, width, task.num_rows);
    MatMul(task.weights.w3, inputs + row * latent, up + row * width, width, task.num_rows);
    row += task.num_rows;
  }
  SituGlu(gate, gate, up, rows * width, params);
  row = 0;
  for (const ExpertTask& task : tasks) {
    MatMul(task.weights.w2, gate + row * width, outputs + row * latent, latent, task.num_rows);
    row += task.num_rows;
  }
  row = 0;
  for (const ExpertTask& task : tasks) {
    for (int64_t i = 0; i < task.num_rows; ++i, ++row) {
      Copy(y + task.out_rows[i] * latent, outputs + row * latent,
           static_cast<size_t>(latent) * sizeof(float));
    }
  }
}

void VulkanDevice::CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                                  int64_t top_k, int64_t dim) {
  struct Job {
    VkDeviceAddress result;
    VkDeviceAddress y;
    VkDeviceAddress weights;
    uint32_t top_k;
    uint32_t dim;
  };
  const Rows in = Whole(y, n * top_k * dim);
  const Rows result = Whole(out, n * dim);
  const auto run = [this, out, y, weights = CopyOf(host_weights, n * top_k), n, top_k, dim] {
    host_->CombineExperts(out, y, weights.data(), n, top_k, dim);
  };
  const auto record = [&] {
    const DeviceRange weights =
        Constant(host_weights, static_cast<size_t>(n * top_k) * sizeof(float));
    Order({&weights, 1}, {});
    Commands().Run("combine",
                   Job{AddressOf(result), AddressOf(in), weights.begin, U32(top_k), U32(dim)},
                   GroupsOf(dim), U32(n));
  };
  if (n <= kMostGroups && IsThere({in}) && OnGpu({in}, {result}, record, run)) return;
  OnHost({in}, {result}, run);
}

// ---- dense ----

void VulkanDevice::InPlace(const char* shader, float* y, const float* other, int64_t count,
                           const std::function<void()>& run) {
  const Rows result = Whole(y, count);
  const Rows second = Whole(other, count);
  const auto record = [&] {
    const VkDeviceAddress first = AddressOf(result);
    Commands().Run(shader, ElementwiseJob{first, first, AddressOf(second), U32(count), 0, 0},
                   GroupsOf(count));
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
        Commands().Run("situ_glu",
                       ElementwiseJob{AddressOf(result), AddressOf(first), AddressOf(second),
                                      U32(count), Bits(params.beta), Bits(params.linear_beta)},
                       GroupsOf(count));
      },
      [this, out, gate, up, count, params] { host_->SituGlu(out, gate, up, count, params); });
}

void VulkanDevice::Norm(float* y, const float* x, const float* gate, const float* host_w, int64_t n,
                        int64_t dim, int64_t stride, float eps) {
  struct Job {
    VkDeviceAddress y;
    VkDeviceAddress x;
    VkDeviceAddress weights;
    VkDeviceAddress gate;
    uint32_t dim;
    uint32_t stride;
    uint32_t dim_bits;
    uint32_t eps;
    int32_t least;
    uint32_t unused = 0;
  };
  const Rows in{x, n, dim, stride};
  const Rows out{y, n, dim, stride};
  const Rows gates = Whole(gate == nullptr ? x : gate, gate == nullptr ? 1 : n * dim);
  const Operands reads = gate == nullptr ? Operands{in} : Operands{in, gates};
  const auto run = [this, y, x, gate, w = CopyOf(host_w, dim), n, dim, stride, eps] {
    if (gate == nullptr) {
      host_->RmsNorm(y, x, w.data(), n, dim, stride, eps);
    } else {
      host_->GatedRmsNorm(y, gate, w.data(), n, dim, eps);
    }
  };
  const auto record = [&] {
    const Job job{AddressOf(out),
                  AddressOf(in),
                  Vector(host_w, dim),
                  AddressOf(gates),
                  U32(dim),
                  U32(stride),
                  Bits(static_cast<float>(dim)),
                  Bits(eps),
                  flushes_subnormals_ ? kLeastNormal : INT_MIN};
    Commands().RunArithmetic(gate == nullptr ? "norm" : "gated_norm", job, U32(n));
  };
  if (n <= kMostGroups && IsThere(reads) && OnGpu(reads, {out}, record, run)) return;
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

void VulkanDevice::ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                               int64_t num_snapshots, const float* prefix, const float* host_query,
                               int64_t n, int64_t dim, float eps) {
  struct Job {
    VkDeviceAddress result;
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
  Operands reads{Whole(prefix, n * dim)};
  for (int64_t i = 0; i < num_snapshots; ++i) {
    reads.push_back(Whole(snapshots + i * snapshot_stride, n * dim));
  }
  const Rows result = Whole(out, n * dim);
  const auto run = [this, out, snapshots, snapshot_stride, num_snapshots, prefix,
                    query = CopyOf(host_query, dim), n, dim, eps] {
    host_->ResidualMix(out, snapshots, snapshot_stride, num_snapshots, prefix, query.data(), n, dim,
                       eps);
  };
  const auto record = [&] {
    const Job job{AddressOf(result),
                  AddressOf(reads[1]),
                  AddressOf(reads[0]),
                  Vector(host_query, dim),
                  U32(snapshot_stride),
                  U32(num_snapshots),
                  U32(dim),
                  Bits(static_cast<float>(dim)),
                  Bits(eps),
                  flushes_subnormals_ ? kLeastNormal : INT_MIN};
    Commands().RunArithmetic("residual_mix", job, U32(n));
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
  // What another allocation gets is what the host keeps.
  const bool is_apart = to.end() <= from.begin() || from.end() <= to.begin();
  if (is_apart && bytes % kFloat == 0 && IsThere({from}) && AreNear(from, to)) {
    const auto record = [&] {
      uint64_t to_offset = 0;
      uint64_t from_offset = 0;
      const GpuBuffer& to_shadow = AllocationOf(to, &to_offset).shadow;
      const GpuBuffer& from_shadow = AllocationOf(from, &from_offset).shadow;
      Commands().Copy(to_shadow, to_offset, from_shadow, from_offset, bytes);
    };
    if (OnGpu({from}, {to}, record, run)) return;
  }
  OnHost({from}, {to}, run);
}

// ---- what the host computes ----

void VulkanDevice::ShortConv(float* y, const float* x, const float* host_w, float* history,
                             int64_t n, int64_t channels) {
  const Rows states = Whole(history, 3 * channels);
  OnHost({Whole(x, n * channels), states}, {Whole(y, n * channels), states},
         [&] { host_->ShortConv(y, x, host_w, history, n, channels); });
}

void VulkanDevice::L2Normalize(float* x, int64_t rows, int64_t dim, float scale) {
  const Rows all = Whole(x, rows * dim);
  OnHost({all}, {all}, [&] { host_->L2Normalize(x, rows, dim, scale); });
}

void VulkanDevice::KdaGates(float* f, float* beta, const float* host_a_log,
                            const float* host_dt_bias, int64_t n, int64_t heads, int64_t dim,
                            float lower_bound) {
  const Operands both{Whole(f, n * heads * dim), Whole(beta, n * heads)};
  OnHost(both, both,
         [&] { host_->KdaGates(f, beta, host_a_log, host_dt_bias, n, heads, dim, lower_bound); });
}

void VulkanDevice::KdaRecurrence(float* out, float* state, const float* q, const float* k,
                                 const float* v, const float* alpha, const float* beta, int64_t n,
                                 int64_t heads, int64_t dim) {
  const int64_t count = n * heads * dim;
  const Rows states = Whole(state, heads * dim * dim);
  OnHost({Whole(q, count), Whole(k, count), Whole(v, count), Whole(alpha, count),
          Whole(beta, n * heads), states},
         {Whole(out, count), states},
         [&] { host_->KdaRecurrence(out, state, q, k, v, alpha, beta, n, heads, dim); });
}

void VulkanDevice::MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                             int64_t n, const MlaShape& shape) {
  OnHost({Whole(latent, n * shape.latent_dim())}, {},
         [&] { host_->MlaAppend(cache, latent, first, n, shape); });
}

void VulkanDevice::MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                                  const MlaShape& shape) {
  const int64_t rows = n * shape.num_heads;
  OnHost({Whole(q, rows * shape.query_dim())}, {Whole(out, rows * shape.latent_dim())},
         [&] { host_->MlaAbsorbQuery(out, kv_b, q, n, shape); });
}

void VulkanDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                             int64_t first, int64_t n, const MlaShape& shape, float scale) {
  const int64_t rows = n * shape.num_heads;
  OnHost({Whole(absorbed, rows * shape.latent_dim())}, {Whole(out, rows * shape.kv_lora)},
         [&] { host_->MlaAttend(out, absorbed, cache, first, n, shape, scale); });
}

void VulkanDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                  const MlaShape& shape) {
  const int64_t rows = n * shape.num_heads;
  OnHost({Whole(o, rows * shape.kv_lora)}, {Whole(out, rows * shape.v_dim)},
         [&] { host_->MlaExpandValue(out, kv_b, o, n, shape); });
}

void VulkanDevice::RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                              const float* host_bias, int64_t n, const RouterParams& params) {
  OnHost({Whole(logits, n * params.num_experts)}, {},
         [&] { host_->RouterTopK(host_ids, host_weights, logits, host_bias, n, params); });
}

}  // namespace deltafin
