// Routed experts on the GPU.
#include <algorithm>
#include <array>
#include <climits>

#include "base/check.h"
#include "device/vulkan/lane_layout.h"
#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {

bool VulkanDevice::PlaceExpert(const ExpertWeights& weights) {
  const Matrix& w1 = weights.w1;
  return w1.id != 0 && Place(w1) != nullptr && Place(weights.w3) != nullptr &&
         Place(weights.w2) != nullptr;
}

void VulkanDevice::ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                             int64_t latent, SituParams params) {
  std::vector<ExpertTask> of_gpu;
  std::vector<ExpertTask> in_place;  // of the GPU's too
  std::vector<ExpertTask> of_host;
  for (const ExpertTask& task : tasks) {
    const ExpertWeights& weights = task.weights;
    if (PlaceExpert(weights)) {
      of_gpu.push_back(task);
    } else if (InPlace(weights.w1) && InPlace(weights.w3) && InPlace(weights.w2)) {
      in_place.push_back(task);
    } else {
      of_host.push_back(task);
    }
  }
  int32_t last_row = 0;  // of z, that the host reads
  for (const ExpertTask& task : of_host) {
    for (int64_t i = 0; i < task.num_rows; ++i) last_row = std::max(last_row, task.in_rows[i]);
  }
  // Both compute at the same time.
  const Rows of_z = Whole(z, (last_row + 1) * latent);
  const bool is_apart = !of_host.empty() && SendExpertsInput(of_z);
  if (!is_apart && !of_host.empty() && pending_.Overlaps(of_z.begin(), of_z.end())) Settle();
  for (const std::vector<ExpertTask>* some : {&of_gpu, &in_place}) {
    if (some->empty()) continue;
    if (!is_lost_ && !has_operators_) {
      ExpertsByProducts(*some, z, y, latent, params);
    } else if (!GpuExperts({*some, {}, z, y, latent, params, some == &in_place})) {
      of_host.insert(of_host.end(), some->begin(), some->end());
    }
  }
  if (of_host.empty()) return;
  host_has_experts_ = true;
  if (is_apart && ExpertsApart(of_host, y, latent, params)) return;
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

// The data of some may have been on a GPU that was lost: of a long pass these are more than there
// is memory for, so one expert comes after the other.
void VulkanDevice::RunExperts(const ExpertCall& call) {
  std::vector<ExpertTask> here;
  std::array<std::vector<std::byte>, 3> bytes;
  for (const ExpertTask& task : call.tasks) {
    ExpertTask one = task;
    bool is_here = true;
    size_t part = 0;
    for (Matrix* w : {&one.weights.w1, &one.weights.w3, &one.weights.w2}) {
      is_here = is_here && w->data != nullptr;
      *w = ReadAgain(*w, bytes[part++]);
    }
    if (is_here) {
      here.push_back(one);
    } else {
      host_->ExpertMlp({&one, 1}, call.z, call.y, call.latent, call.params);
    }
  }
  if (!here.empty()) host_->ExpertMlp(here, call.z, call.y, call.latent, call.params);
}

bool VulkanDevice::GpuExperts(ExpertCall experts) {
  const auto call = std::make_shared<ExpertCall>(std::move(experts));
  const ExpertWeights& first = call->tasks[0].weights;
  const int64_t latent = call->latent;
  int64_t most_row = 0;
  Operands writes;
  for (const ExpertTask& task : call->tasks) {
    const ExpertWeights& weights = task.weights;
    DF_CHECK(weights.w1.cols == latent && weights.w2.rows == latent);
    DF_CHECK(weights.w1.rows == first.w1.rows && weights.w2.cols == first.w1.rows);
    DF_CHECK(weights.w1.format == first.w1.format && weights.w2.format == first.w1.format);
    for (int64_t i = 0; i < task.num_rows; ++i) {
      most_row = std::max<int64_t>(most_row, task.in_rows[i]);
      writes.push_back(Whole(call->y + task.out_rows[i] * latent, latent));
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
      {Whole(call->z, (most_row + 1) * latent)}, writes, [&] { RecordExperts(*call); },
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
    const HeldMatrix held = call.is_in_place ? GuardedInPlace(w) : *experts_.Find(w.id);
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
    if (call.is_in_place) {
      RecordInPlace(jobs[first], table.begin, U32(count), U32(most_n), needs_exact);
      return;
    }
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
  Commands().RunArithmetic("situ_glu",
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
  const auto run = [this, out, y,
                    weights = std::vector<float>(host_weights, host_weights + n * top_k), n, top_k,
                    dim] { host_->CombineExperts(out, y, weights.data(), n, top_k, dim); };
  const auto record = [&] {
    const DeviceRange weights =
        Constant(host_weights, static_cast<size_t>(n * top_k) * sizeof(float));
    Order({&weights, 1}, {});
    Commands().RunArithmetic(
        "combine", Job{AddressOf(result), AddressOf(in), weights.begin, U32(top_k), U32(dim)},
        GroupsOf(dim), U32(n));
  };
  if (n <= kMostGroups && IsThere({in}) && OnGpu({in}, {result}, record, run)) return;
  OnHost({in}, {result}, run);
}

}  // namespace deltafin
