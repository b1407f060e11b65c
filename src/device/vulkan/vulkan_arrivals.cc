// What the host takes from the GPU while that goes on with what it was asked for later: the
// router's picks, what the host's experts read, and values that are asked for.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

// shaders/router.comp
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostPicks = 64;
// Of inputs of products, and other things that are made anew after a wait.
constexpr uint64_t kEnoughScratchBytes = uint64_t{64} << 20;
// Of host memory that the GPU reads or writes, for which all that is under way is waited for.
constexpr uint64_t kEnoughStagedBytes = uint64_t{32} << 20;
// Copied by a shader.
constexpr size_t kMostPieceBytes = size_t{1} << 20;
// What ExpertsApart takes: inputs and results of a call, and of all calls since everything was
// settled. Of more, the GPU's share of the time is small.
constexpr uint64_t kMostApartInputBytes = uint64_t{512} << 10;
constexpr uint64_t kMostApartResultBytes = uint64_t{8} << 20;
constexpr uint64_t kMostApartBytes = uint64_t{16} << 20;

}  // namespace

// ---- values ----

void VulkanDevice::Send(VkDeviceAddress from, const GpuArena::Piece& to, size_t bytes) {
  const GpuCommands::Piece piece{from, to.address(), static_cast<uint32_t>(bytes / sizeof(float))};
  Commands().CopyPieces({&piece, 1}, bytes);
}

bool VulkanDevice::Fetch(const Rows& whole, void* to) {
  if (!has_operators_ || is_lost_) return false;
  CloseColumns();
  if (!valid_.Contains(whole.begin(), whole.end())) return false;
  const auto bytes = static_cast<size_t>(whole.end() - whole.begin());
  try {
    const DeviceRange range = RangeOf(whole);
    Order({&range, 1}, {});
    const GpuArena::Piece piece = from_gpu_.Take(bytes);
    if (bytes <= kMostPieceBytes) {
      Send(range.begin, piece, bytes);
    } else {
      uint64_t offset = 0;
      const GpuBuffer& shadow = ShadowOf(whole, &offset);
      Commands().Copy(*piece.buffer, piece.offset, shadow, offset, bytes);
    }
    Kick();
    WaitFor(last_ticket_);
    std::memcpy(to, piece.host(), bytes);
    FreeStaged();
  } catch (const Error& error) {
    Lose(error.what());
    return false;
  }
  return true;
}

void VulkanDevice::WaitFor(uint64_t ticket) {
  CollectInputs(gpu_.Progress());  // while the GPU works
  ++num_waits_;
  gpu_.Wait(ticket);
}

void VulkanDevice::FreeStaged() {
  const bool is_much = scratch_.used_bytes() >= kEnoughScratchBytes ||
                       to_gpu_.used_bytes() + from_gpu_.used_bytes() >= kEnoughStagedBytes;
  if (is_much) {
    Kick();
    gpu_.Wait(last_ticket_);
  } else if (commands_ || gpu_.Progress() < last_ticket_) {
    return;
  }
  CollectInputs(last_ticket_);
  if (experts_input_) Collect(*experts_input_);
  if (picks_) Collect(*picks_);
  to_gpu_.Reset();
  from_gpu_.Reset();
  if (scratch_.used_bytes() < kEnoughScratchBytes) return;
  inputs_.clear();
  scratch_.Reset();
}

void VulkanDevice::Collect(Arrival& arrival) {
  if (arrival.values) return;
  const auto* const from = reinterpret_cast<const float*>(arrival.piece.host());
  arrival.values = std::make_shared<const std::vector<float>>(from, from + arrival.floats);
}

std::shared_ptr<const std::vector<float>> VulkanDevice::ValuesOf(Arrival& arrival) {
  if (arrival.values) return arrival.values;
  try {
    Kick();  // the GPU goes on
    WaitFor(arrival.ticket);
    Collect(arrival);
    auto values = arrival.values;
    FreeStaged();
    return values;
  } catch (const Error& error) {
    Lose(error.what());
    return nullptr;
  }
}

// ---- the router ----

bool VulkanDevice::StartRouter(const float* logits, const float* host_bias, int64_t n,
                               const RouterParams& params) {
  struct Job {
    VkDeviceAddress logits;
    VkDeviceAddress bias;
    VkDeviceAddress ids;
    VkDeviceAddress weights;
    uint32_t num_experts;
    uint32_t top_k;
    uint32_t renormalize;
    uint32_t scaling_factor;
  };
  const Rows in = Whole(logits, n * params.num_experts);
  const bool fits =
      n <= kMostGroups && params.num_experts <= kMostExperts && params.top_k <= kMostPicks;
  if (!fits || !IsThere({in})) return false;
  CloseColumns();
  if (!valid_.Contains(in.begin(), in.end())) return false;
  const auto picks = static_cast<size_t>(n * params.top_k);
  try {
    const VkDeviceAddress bias = AddressOf(VectorOf(host_bias, params.num_experts));
    const GpuArena::Piece piece = from_gpu_.Take(2 * picks * sizeof(float));
    const DeviceRange range = RangeOf(in);
    Order({&range, 1}, {});
    Commands().RunArithmetic(
        "router",
        Job{range.begin, bias, piece.address(), piece.address() + picks * sizeof(float),
            U32(params.num_experts), U32(params.top_k), params.renormalize ? 1u : 0u,
            Bits(params.scaling_factor)},
        U32(n));
    Kick();
    picks_ = Arrival{in, piece, 2 * picks, last_ticket_, nullptr};
  } catch (const Error& error) {
    Lose(error.what());
    return false;
  }
  return true;
}

void VulkanDevice::RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                              const float* host_bias, int64_t n, const RouterParams& params) {
  const Rows in = Whole(logits, n * params.num_experts);
  const auto picks = static_cast<size_t>(n * params.top_k);
  const bool has_begun = picks_ && picks_->what.data == logits && picks_->floats == 2 * picks;
  if (has_begun || StartRouter(logits, host_bias, n, params)) {
    Arrival arrival = *std::exchange(picks_, std::nullopt);
    if (const auto both = ValuesOf(arrival)) {
      std::memcpy(host_ids, both->data(), picks * sizeof(int32_t));
      std::memcpy(host_weights, both->data() + picks, picks * sizeof(float));
      return;
    }
  }
  OnHost({in}, {},
         [&] { host_->RouterTopK(host_ids, host_weights, logits, host_bias, n, params); });
}

// ---- the host's experts ----

void VulkanDevice::StartExperts(const float* z, int64_t n, int64_t latent) {
  if (std::exchange(host_has_experts_, false)) SendExpertsInput(Whole(z, n * latent));
}

bool VulkanDevice::SendExpertsInput(const Rows& z) {
  if (experts_input_ && experts_input_->what.data == z.data &&
      experts_input_->what.width >= z.width)
    return true;
  const auto bytes = static_cast<size_t>(z.end() - z.begin());
  if (bytes > kMostApartInputBytes || apart_bytes_ > kMostApartBytes || !IsThere({z})) return false;
  CloseColumns();
  if (!valid_.Contains(z.begin(), z.end())) return false;
  try {
    const GpuArena::Piece piece = from_gpu_.Take(bytes);
    const DeviceRange range = RangeOf(z);
    Order({&range, 1}, {});
    Send(range.begin, piece, bytes);
    Kick();
    experts_input_ = Arrival{z, piece, static_cast<size_t>(z.width), last_ticket_, nullptr};
  } catch (const Error& error) {
    Lose(error.what());
    return false;
  }
  return true;
}

bool VulkanDevice::ExpertsApart(std::span<const ExpertTask> tasks, float* y, int64_t latent,
                                SituParams params) {
  std::vector<int32_t> rows;  // of y, ascending; the results have them side by side
  for (const ExpertTask& task : tasks) {
    rows.insert(rows.end(), task.out_rows, task.out_rows + task.num_rows);
  }
  std::sort(rows.begin(), rows.end());
  const auto count = static_cast<size_t>(std::ssize(rows) * latent);
  if (count * sizeof(float) > kMostApartResultBytes) return false;
  TryKick();  // the GPU computes meanwhile
  const auto inputs = experts_input_ ? ValuesOf(*experts_input_) : nullptr;
  if (!inputs) return false;
  apart_bytes_ += (count + inputs->size()) * sizeof(float);

  std::vector<int32_t> places;
  for (const ExpertTask& task : tasks) {
    for (int64_t i = 0; i < task.num_rows; ++i) {
      const auto place = std::lower_bound(rows.begin(), rows.end(), task.out_rows[i]);
      places.push_back(static_cast<int32_t>(place - rows.begin()));
    }
  }
  const auto results = std::make_shared<std::vector<float>>(count);
  ExpertCall call{
      {tasks.begin(), tasks.end()}, {}, inputs->data(), results->data(), latent, params};
  const int32_t* place = places.data();
  for (ExpertTask& task : call.tasks) {
    task.out_rows = place;
    place += task.num_rows;
  }
  RunExperts(call);

  Operands stretches;  // of y
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i] == rows[i - 1] + 1) {
      stretches.back().width += latent;
      stretches.back().stride += latent;
    } else {
      stretches.push_back(Whole(y + rows[i] * latent, latent));
    }
  }
  const auto record = [&] {
    const GpuArena::Piece staged = to_gpu_.Take(count * sizeof(float));
    std::memcpy(staged.host(), results->data(), count * sizeof(float));
    std::vector<GpuCommands::Piece> pieces;
    VkDeviceAddress from = staged.address();
    for (const Rows& stretch : stretches) {
      pieces.push_back({from, AddressOf(stretch), U32(stretch.width)});
      from += static_cast<uint64_t>(stretch.width) * sizeof(float);
    }
    for (size_t i = 0; i < pieces.size(); i += GpuCommands::kMostPieces) {
      const size_t some = std::min(GpuCommands::kMostPieces, pieces.size() - i);
      uint64_t bytes = 0;
      for (size_t j = i; j < i + some; ++j) bytes += uint64_t{pieces[j].words} * sizeof(float);
      Commands().CopyPieces({pieces.data() + i, some}, bytes);
    }
  };
  const auto again = [results, stretches] {
    const float* from = results->data();
    for (const Rows& stretch : stretches) {
      std::copy_n(from, stretch.width, const_cast<float*>(stretch.data));
      from += stretch.width;
    }
  };
  if (!OnGpu({}, stretches, record, again)) OnHost({}, stretches, again);
  return true;
}

}  // namespace deltafin
