#include "device/vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "device/vulkan/lane_layout.h"

namespace deltafin {
namespace {

// Activations and results of what is recorded; more is cut into several turns.
constexpr uint64_t kInputBytes = uint64_t{16} << 20;
constexpr uint64_t kResultBytes = uint64_t{32} << 20;
constexpr uint64_t kAlignment = 64;
// So much work is worth handing over at once: the GPU begins while the rest is recorded.
constexpr uint64_t kKickBytes = uint64_t{256} << 20;
// Results from this size on are copied by several threads.
constexpr int64_t kParallelFloats = 1 << 18;

uint64_t Aligned(int64_t floats) {
  return (static_cast<uint64_t>(floats) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

VulkanDevice::VulkanDevice(Gpu& gpu, std::unique_ptr<Device> host, ThreadPool& pool,
                           VulkanDeviceOptions options)
    : gpu_(gpu),
      host_(std::move(host)),
      pool_(pool),
      on_notice_(std::move(options.on_notice)),
      flushes_subnormals_(options.flushes_subnormals),
      staging_(gpu, pool),
      spine_(gpu, staging_, options.spine_bytes),
      experts_(gpu, staging_, options.expert_bytes) {}

VulkanDevice::~VulkanDevice() { gpu_.WaitForAll(); }

std::string VulkanDevice::Describe() const {
  return format("gpu {} ({}) and {}", gpu_.info().name,
                is_lost_ ? "lost" : GpuKindName(gpu_.info().kind), host_->Describe());
}

bool VulkanDevice::Holds(uint64_t id) const {
  return !is_lost_ && (IsExpertId(id) ? experts_ : spine_).Find(id) != nullptr;
}

// ---- products on the GPU ----

const HeldMatrix* VulkanDevice::Place(const Matrix& w) {
  HeldWeights& weights = IsExpertId(w.id) ? experts_ : spine_;
  const HeldMatrix* held = weights.Find(w.id);
  return held != nullptr || w.data == nullptr ? held : weights.Add(w);
}

void VulkanDevice::MatMul(const Matrix& w, const float* x, float* y, int64_t y_stride, int64_t n) {
  if (w.id == 0 || is_lost_) {
    HostMatMul(w, x, y, y_stride, n);
    return;
  }
  if (IsPending(x, 1, n * w.cols, n * w.cols)) Settle();
  const int64_t input_floats = LaidOutInputFloats(w.cols);
  const int64_t most = std::min(static_cast<int64_t>(kInputBytes / Aligned(input_floats)),
                                static_cast<int64_t>(kResultBytes / Aligned(w.rows)));
  const HeldMatrix* held = nullptr;
  try {
    held = most > 0 ? Place(w) : nullptr;
    if (held != nullptr && !IsSafe(*held, x, n * w.cols)) held = nullptr;
    for (int64_t p = 0; p < n && held != nullptr && !is_lost_; p += most) {
      const int64_t some = std::min(most, n - p);
      const bool fits = to_gpu_used_ + Aligned(some * input_floats) <= kInputBytes &&
                        from_gpu_used_ + Aligned(some * w.rows) <= kResultBytes;
      if (!fits) Settle();
      if (!is_lost_) Record(w, *held, x + p * w.cols, y + p * y_stride, y_stride, some);
    }
  } catch (const Error& error) {
    if (is_lost_) throw;  // weights could not be read again
    Lose(error.what());
  }
  if (held == nullptr || is_lost_) HostMatMul(w, x, y, y_stride, n);
}

bool VulkanDevice::IsSafe(const HeldMatrix& held, const float* x, int64_t floats) {
  constexpr int kLeastNormal = -126;
  if (!flushes_subnormals_) return true;
  if (checked_x_ != x || checked_floats_ != floats) {
    checked_quantum_ = QuantumOf(x, floats);
    checked_x_ = x;
    checked_floats_ = floats;
  }
  return checked_quantum_ + std::min(held.quantum, 0) >= kLeastNormal;
}

void VulkanDevice::Record(const Matrix& w, const HeldMatrix& held, const float* x, float* y,
                          int64_t y_stride, int64_t n) {
  if (from_gpu_.size_bytes() == 0) from_gpu_ = GpuBuffer(gpu_, kResultBytes, MemoryUse::kFromGpu);
  if (!commands_) commands_ = gpu_.Begin();
  ProductJob job;
  job.weights = held.weights;
  job.scales = held.scales;
  job.x = RecordInput(w.format, x, w.cols, n);
  job.y = from_gpu_.address() + from_gpu_used_;
  job.rows = static_cast<uint32_t>(w.rows);
  job.cols = static_cast<uint32_t>(w.cols);
  job.n = static_cast<uint32_t>(n);
  commands_->Product(w.format, job);
  products_.push_back({w, x, y, y_stride, n, from_gpu_used_});
  from_gpu_used_ += Aligned(n * w.rows);
  commands_bytes_ += static_cast<uint64_t>(w.rows * w.row_bytes());
  if (commands_bytes_ >= kKickBytes) Kick();
}

VkDeviceAddress VulkanDevice::RecordInput(WeightFormat weights, const float* x, int64_t cols,
                                          int64_t n) {
  const bool is_plain = weights == WeightFormat::kMxfp4;
  for (const Input& input : inputs_) {
    if (input.x == x && input.cols == cols && input.n == n && input.is_plain == is_plain) {
      return input.address;
    }
  }
  if (to_gpu_.size_bytes() == 0) {
    to_gpu_ = GpuBuffer(gpu_, kInputBytes, MemoryUse::kToGpu);
    if (!to_gpu_.is_local()) inputs_of_gpu_ = GpuBuffer(gpu_, kInputBytes, MemoryUse::kScratch);
  }
  const int64_t floats = LaidOutInputFloats(cols);
  const uint64_t bytes = static_cast<uint64_t>(n * floats) * sizeof(float);
  auto* const to = reinterpret_cast<float*>(to_gpu_.host() + to_gpu_used_);
  const int64_t grain = std::max<int64_t>(1, kParallelFloats / floats);
  pool_.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      LayOutInput(weights, x + p * cols, cols, to + p * floats);
    }
  });
  VkDeviceAddress address = to_gpu_.address();
  if (inputs_of_gpu_.size_bytes() != 0) {
    commands_->Copy(inputs_of_gpu_, to_gpu_used_, to_gpu_, to_gpu_used_, bytes);
    commands_->CopiesBeforeWork();
    address = inputs_of_gpu_.address();
  }
  address += to_gpu_used_;
  to_gpu_used_ += Aligned(n * floats);
  inputs_.push_back({x, cols, n, is_plain, address});
  return address;
}

void VulkanDevice::Kick() {
  if (!commands_) return;
  last_ticket_ = gpu_.Submit(*commands_);
  commands_.reset();
  commands_bytes_ = 0;
}

void VulkanDevice::Settle() {
  checked_x_ = nullptr;
  if (products_.empty()) return;
  try {
    Kick();
    gpu_.Wait(last_ticket_);
  } catch (const Error& error) {
    Lose(error.what());
    return;
  }
  StoreResults();
  ForgetRecords();
}

void VulkanDevice::StoreResults() {
  for (const Product& product : products_) {
    const auto* const from = reinterpret_cast<const float*>(from_gpu_.host() + product.y_offset);
    const int64_t rows = product.w.rows;
    const int64_t grain = std::max<int64_t>(1, kParallelFloats / rows);
    pool_.ParallelFor(product.n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        std::memcpy(product.y + p * product.y_stride, from + p * rows,
                    static_cast<size_t>(rows) * sizeof(float));
      }
    });
  }
}

void VulkanDevice::ForgetRecords() {
  products_.clear();
  inputs_.clear();
  checked_x_ = nullptr;
  to_gpu_used_ = 0;
  from_gpu_used_ = 0;
}

void VulkanDevice::Lose(const std::string& why) {
  is_lost_ = true;
  commands_.reset();
  spine_.Forget();
  experts_.Forget();
  const std::vector<Product> unfinished = std::move(products_);
  ForgetRecords();
  if (on_notice_) {
    on_notice_(format("{}; the CPU computes what it held from now on, with the same results", why));
  }
  for (const Product& product : unfinished) {
    // The piece of the spine that it was may have left the host's memory; an expert stays until
    // Synchronize.
    Matrix w = product.w;
    if (!IsExpertId(w.id) && origin_ != nullptr) w.data = nullptr;
    HostMatMul(w, product.x, product.y, product.y_stride, product.n);
  }
}

void VulkanDevice::HostMatMul(const Matrix& w, const float* x, float* y, int64_t y_stride,
                              int64_t n) {
  if (IsPending(x, 1, n * w.cols, n * w.cols) || IsPending(y, n, w.rows, y_stride)) {
    Settle();
  } else if (!is_lost_) {
    try {
      Kick();  // the GPU computes meanwhile
    } catch (const Error& error) {
      Lose(error.what());
    }
  }
  // What y holds now is no input that was recorded before.
  const float* const end = y + (n - 1) * y_stride + w.rows;
  checked_x_ = nullptr;
  std::erase_if(inputs_, [&](const Input& input) {
    return input.x < end && y < input.x + input.n * input.cols;
  });
  std::vector<std::byte> bytes;
  host_->MatMul(ReadAgain(w, bytes), x, y, y_stride, n);
}

Matrix VulkanDevice::ReadAgain(const Matrix& w, std::vector<std::byte>& bytes) const {
  if (w.data != nullptr) return w;
  WeightOrigin* const origin = IsExpertId(w.id) ? expert_origin_ : origin_;
  if (origin == nullptr) {
    throw Error(ErrorCode::kIo, format("the GPU {} was lost, and with it weights that nothing else "
                                       "holds; start again",
                                       gpu_.info().name));
  }
  return origin->ReadAgain(w.id, bytes);
}

bool VulkanDevice::IsPending(const float* begin, int64_t n, int64_t width, int64_t stride) const {
  const float* const end = begin + (n - 1) * stride + width;
  return std::any_of(products_.begin(), products_.end(), [&](const Product& product) {
    const float* const other_end = product.y + (product.n - 1) * product.y_stride + product.w.rows;
    if (end <= product.y || other_end <= begin) return false;
    // Columns of one matrix, side by side.
    const bool begins_first = begin < product.y;
    const int64_t apart = begins_first ? product.y - begin : begin - product.y;
    const int64_t first_width = begins_first ? width : product.w.rows;
    const int64_t second_width = begins_first ? product.w.rows : width;
    return !(stride == product.y_stride && first_width <= apart && apart + second_width <= stride);
  });
}

// ---- experts ----

void VulkanDevice::ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                             int64_t latent, SituParams params) {
  Settle();
  gpu_experts_.clear();
  host_tasks_.clear();
  int64_t rows = 0;
  for (const ExpertTask& task : tasks) {
    bool placed = !is_lost_ && task.weights.w1.id != 0;
    try {
      for (const Matrix* w : {&task.weights.w1, &task.weights.w3, &task.weights.w2}) {
        placed = placed && Place(*w) != nullptr;
      }
    } catch (const Error& error) {
      Lose(error.what());
      placed = false;
    }
    if (placed) {
      gpu_experts_.push_back({&task, rows});
      rows += task.num_rows;
    } else {
      host_tasks_.push_back(task);
    }
  }
  RunGpuExperts(z, y, latent, params);
}

// The data of some may have been on a GPU that was lost.
void VulkanDevice::RunHostExperts(const float* z, float* y, int64_t latent, SituParams params) {
  if (host_tasks_.empty()) return;
  std::vector<std::vector<std::byte>> bytes;
  for (ExpertTask& task : host_tasks_) {
    for (Matrix* w : {&task.weights.w1, &task.weights.w3, &task.weights.w2}) {
      if (w->data == nullptr) *w = ReadAgain(*w, bytes.emplace_back());
    }
  }
  host_->ExpertMlp(host_tasks_, z, y, latent, params);
}

// The products of MatMul, in two turns: the hidden values pass through the host, whose division is
// correctly rounded.
void VulkanDevice::RunGpuExperts(const float* z, float* y, int64_t latent, SituParams params) {
  if (gpu_experts_.empty()) {
    RunHostExperts(z, y, latent, params);
    return;
  }
  const int64_t width = gpu_experts_.front().task->weights.w1.rows;
  const GpuExpert& last = gpu_experts_.back();
  const auto rows = static_cast<size_t>(last.first_row + last.task->num_rows);
  const auto row_size = static_cast<size_t>(latent);
  expert_inputs_.resize(rows * row_size);
  expert_outputs_.resize(rows * row_size);
  gate_.resize(rows * static_cast<size_t>(width));
  up_.resize(gate_.size());
  for (const GpuExpert& expert : gpu_experts_) {
    const ExpertTask& task = *expert.task;
    DF_CHECK(task.weights.w1.cols == latent && task.weights.w2.rows == latent);
    DF_CHECK(task.weights.w1.rows == width && task.weights.w2.cols == width);
    float* const in = expert_inputs_.data() + expert.first_row * latent;
    for (int64_t i = 0; i < task.num_rows; ++i) {
      std::memcpy(in + i * latent, z + task.in_rows[i] * latent, row_size * sizeof(float));
    }
    float* const gate = gate_.data() + expert.first_row * width;
    MatMul(task.weights.w1, in, gate, width, task.num_rows);
    MatMul(task.weights.w3, in, up_.data() + expert.first_row * width, width, task.num_rows);
  }
  try {
    Kick();
  } catch (const Error& error) {
    Lose(error.what());
  }
  RunHostExperts(z, y, latent, params);
  Settle();
  host_->SituGlu(gate_.data(), gate_.data(), up_.data(), static_cast<int64_t>(gate_.size()),
                 params);
  for (const GpuExpert& expert : gpu_experts_) {
    MatMul(expert.task->weights.w2, gate_.data() + expert.first_row * width,
           expert_outputs_.data() + expert.first_row * latent, latent, expert.task->num_rows);
  }
  Settle();
  for (const GpuExpert& expert : gpu_experts_) {
    for (int64_t i = 0; i < expert.task->num_rows; ++i) {
      std::memcpy(y + expert.task->out_rows[i] * latent,
                  expert_outputs_.data() + (expert.first_row + i) * latent,
                  row_size * sizeof(float));
    }
  }
}

// ---- memory ----

void* VulkanDevice::Allocate(size_t bytes) { return host_->Allocate(bytes); }

void VulkanDevice::Free(void* address) noexcept {
  // After an error a result may still be under way to this memory.
  try {
    Settle();
  } catch (const std::exception&) {
    ForgetRecords();
  }
  host_->Free(address);
}

void VulkanDevice::ToHost(void* host_dst, const void* src, size_t bytes) {
  Host().ToHost(host_dst, src, bytes);
}
void VulkanDevice::ToDevice(void* dst, const void* host_src, size_t bytes) {
  Host().ToDevice(dst, host_src, bytes);
}
void VulkanDevice::Copy(void* dst, const void* src, size_t bytes) { Host().Copy(dst, src, bytes); }
void VulkanDevice::Synchronize() { Host().Synchronize(); }

// ---- what the host computes ----

void VulkanDevice::Add(float* dst, const float* src, int64_t count) { Host().Add(dst, src, count); }
void VulkanDevice::RmsNorm(float* y, const float* x, const float* host_w, int64_t n, int64_t dim,
                           int64_t stride, float eps) {
  Host().RmsNorm(y, x, host_w, n, dim, stride, eps);
}
void VulkanDevice::ResidualMix(float* out, const float* snapshots, int64_t snapshot_stride,
                               int64_t num_snapshots, const float* prefix, const float* host_query,
                               int64_t n, int64_t dim, float eps) {
  Host().ResidualMix(out, snapshots, snapshot_stride, num_snapshots, prefix, host_query, n, dim,
                     eps);
}
void VulkanDevice::SituGlu(float* out, const float* gate, const float* up, int64_t count,
                           SituParams params) {
  Host().SituGlu(out, gate, up, count, params);
}
void VulkanDevice::SigmoidGate(float* y, const float* gate, int64_t count) {
  Host().SigmoidGate(y, gate, count);
}
void VulkanDevice::ShortConv(float* y, const float* x, const float* host_w, float* history,
                             int64_t n, int64_t channels) {
  Host().ShortConv(y, x, host_w, history, n, channels);
}
void VulkanDevice::L2Normalize(float* x, int64_t rows, int64_t dim, float scale) {
  Host().L2Normalize(x, rows, dim, scale);
}
void VulkanDevice::KdaGates(float* f, float* beta, const float* host_a_log,
                            const float* host_dt_bias, int64_t n, int64_t heads, int64_t dim,
                            float lower_bound) {
  Host().KdaGates(f, beta, host_a_log, host_dt_bias, n, heads, dim, lower_bound);
}
void VulkanDevice::KdaRecurrence(float* out, float* state, const float* q, const float* k,
                                 const float* v, const float* alpha, const float* beta, int64_t n,
                                 int64_t heads, int64_t dim) {
  Host().KdaRecurrence(out, state, q, k, v, alpha, beta, n, heads, dim);
}
void VulkanDevice::GatedRmsNorm(float* y, const float* gate, const float* host_w, int64_t rows,
                                int64_t dim, float eps) {
  Host().GatedRmsNorm(y, gate, host_w, rows, dim, eps);
}
void VulkanDevice::MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                             int64_t n, const MlaShape& shape) {
  Host().MlaAppend(cache, latent, first, n, shape);
}
void VulkanDevice::MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                                  const MlaShape& shape) {
  Host().MlaAbsorbQuery(out, kv_b, q, n, shape);
}
void VulkanDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                             int64_t first, int64_t n, const MlaShape& shape, float scale) {
  Host().MlaAttend(out, absorbed, cache, first, n, shape, scale);
}
void VulkanDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                  const MlaShape& shape) {
  Host().MlaExpandValue(out, kv_b, o, n, shape);
}
void VulkanDevice::RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                              const float* host_bias, int64_t n, const RouterParams& params) {
  Host().RouterTopK(host_ids, host_weights, logits, host_bias, n, params);
}
void VulkanDevice::CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                                  int64_t top_k, int64_t dim) {
  Host().CombineExperts(out, y, host_weights, n, top_k, dim);
}

}  // namespace deltafin
