// KDA on the GPU.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

// shaders/kda_recurrence.comp
constexpr int64_t kMostKdaDim = 128;
constexpr int64_t kKdaColumns = 32;
// Steps of a convolution that one workgroup computes.
constexpr int64_t kConvSteps = 8;
// A pass of more steps brings its states to the host: that is less than what they were made of.
constexpr int64_t kMostKeptSteps = 16;
constexpr int64_t kHistory = 3;  // steps

uint32_t Groups(int64_t count, int64_t of_group) { return U32((count + of_group - 1) / of_group); }

}  // namespace

// ---- KDA ----

void VulkanDevice::ShortConv(float* y, const float* x, const float* host_w, float* history,
                             int64_t n, int64_t channels) {
  struct Job {
    VkDeviceAddress y;
    VkDeviceAddress x;
    VkDeviceAddress weights;
    VkDeviceAddress history;
    uint32_t n;
    uint32_t channels;
    uint32_t steps;
    uint32_t updates;
  };
  const Rows in = Whole(x, n * channels);
  const Rows out = Whole(y, n * channels);
  const Rows states = Whole(history, kHistory * channels);
  const HostVector vector = VectorOf(host_w, channels * 4);
  const auto run = [this, y, x, vector, history, n, channels] {
    host_->ShortConv(y, x, vector.values, history, n, channels);
  };
  const auto record = [&] {
    Job job{AddressOf(out), AddressOf(in), AddressOf(vector), AddressOf(states),
            U32(n),         U32(channels), U32(kConvSteps),   n <= kConvSteps ? 1u : 0u};
    const uint32_t groups = Groups(channels, kGroupThreads);
    Commands().RunArithmetic("short_conv", job, groups, Groups(n, kConvSteps));
    if (job.updates != 0) return;
    Commands().Barrier();
    job.steps = 0;
    job.updates = 1;
    Commands().RunArithmetic("short_conv", job, groups);
  };
  // The history is what the last steps had.
  const int64_t last = std::min(n, kHistory);
  KeptStep step;
  step.write = states;
  step.inputs = {Whole(x + (n - last) * channels, last * channels)};
  step.again = [history, last, channels](const float* values) {
    const int64_t kept = (kHistory - last) * channels;
    std::memmove(history, history + last * channels, static_cast<size_t>(kept) * sizeof(float));
    std::memcpy(history + kept, values, static_cast<size_t>(last * channels) * sizeof(float));
  };
  const Operands reads{in, states};
  if (IsThere(reads) && OnGpuKeeping(reads, {out}, std::move(step), record, run)) return;
  OnHost(reads, {out, states}, run);
}

void VulkanDevice::KdaGates(float* f, float* beta, const float* host_a_log,
                            const float* host_dt_bias, int64_t n, int64_t heads, int64_t dim,
                            float lower_bound) {
  struct Job {
    VkDeviceAddress f;
    VkDeviceAddress beta;
    VkDeviceAddress a_log;
    VkDeviceAddress dt_bias;
    uint32_t rows;
    uint32_t heads;
    uint32_t dim;
    uint32_t lower_bound;
  };
  const Operands both{Whole(f, n * heads * dim), Whole(beta, n * heads)};
  const HostVector a_log = VectorOf(host_a_log, heads);
  const HostVector dt_bias = VectorOf(host_dt_bias, heads * dim);
  const auto run = [this, f, beta, a_log, dt_bias, n, heads, dim, lower_bound] {
    host_->KdaGates(f, beta, a_log.values, dt_bias.values, n, heads, dim, lower_bound);
  };
  const auto record = [&] {
    const Job job{AddressOf(both[0]), AddressOf(both[1]), AddressOf(a_log), AddressOf(dt_bias),
                  U32(n * heads),     U32(heads),         U32(dim),         Bits(lower_bound)};
    Commands().RunArithmetic("kda_gates", job, GroupsOf(n * heads * dim));
  };
  if (IsThere(both) && OnGpu(both, both, record, run)) return;
  OnHost(both, both, run);
}

void VulkanDevice::KdaRecurrence(float* out, float* state, const float* q, const float* k,
                                 const float* v, const float* alpha, const float* beta, int64_t n,
                                 int64_t heads, int64_t dim) {
  struct Job {
    VkDeviceAddress result;
    VkDeviceAddress state;
    VkDeviceAddress q;
    VkDeviceAddress k;
    VkDeviceAddress v;
    VkDeviceAddress alpha;
    VkDeviceAddress beta;
    uint32_t n;
    uint32_t heads;
    uint32_t dim;
    uint32_t flushes;
  };
  const int64_t count = n * heads * dim;
  const Rows result = Whole(out, count);
  const Rows states = Whole(state, heads * dim * dim);
  const Operands reads{Whole(k, count),        Whole(v, count), Whole(alpha, count),
                       Whole(beta, n * heads), Whole(q, count), states};
  const auto run = [this, out, state, q, k, v, alpha, beta, n, heads, dim] {
    host_->KdaRecurrence(out, state, q, k, v, alpha, beta, n, heads, dim);
  };
  const auto record = [&] {
    const Job job{AddressOf(result),   AddressOf(states),
                  AddressOf(reads[4]), AddressOf(reads[0]),
                  AddressOf(reads[1]), AddressOf(reads[2]),
                  AddressOf(reads[3]), U32(n),
                  U32(heads),          U32(dim),
                  flushes_subnormals_};
    Commands().RunArithmetic("kda_recurrence", job, Groups(dim, kKdaColumns), U32(heads));
  };
  KeptStep step;
  step.write = states;
  if (n <= kMostKeptSteps) {
    step.inputs.assign(reads.begin(), reads.begin() + 4);
    step.again = [this, state, count, n, heads, dim](const float* values) {
      std::vector<float> unused(static_cast<size_t>(count));
      host_->KdaRecurrence(unused.data(), state, values, values, values + count, values + 2 * count,
                           values + 3 * count, n, heads, dim);
    };
  }
  const bool fits = dim <= kMostKdaDim && heads <= kMostGroups;
  if (fits && IsThere(reads) && OnGpuKeeping(reads, {result}, std::move(step), record, run)) return;
  OnHost(reads, {result, states}, run);
}

}  // namespace deltafin
