// What stays on the GPU when the host waits: how it comes to the host, and what it takes to have it
// there should the GPU be lost.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

// That come to the host at a time.
constexpr uint64_t kMostBroughtBytes = uint64_t{64} << 20;

}  // namespace

void VulkanDevice::WroteKept(KeptStep step) {
  const Rows& write = step.write;
  pending_.Add(write.begin(), write.end());
  valid_.Add(write.begin(), write.end());
  kept_.Add(write.begin(), write.end());
  DropCopies(write);
  std::vector<GpuCommands::Piece> pieces;
  uint64_t bytes = 0;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const DeviceRange input = RangeOf(step.inputs[i]);
    const auto words = static_cast<uint32_t>(input.bytes / sizeof(float));
    pieces.push_back({input.begin, step.staged[i].address(), words});
    bytes += input.bytes;
  }
  if (!pieces.empty()) Commands().CopyPieces(pieces, bytes);
  window_steps_.push_back(std::move(step));
}

void VulkanDevice::CollectInputs(uint64_t ticket) {
  for (KeptStep& step : window_steps_) {
    if (step.ticket == 0 || step.ticket > ticket || step.staged.empty()) continue;
    for (size_t i = 0; i < step.staged.size(); ++i) {
      const auto* const from = reinterpret_cast<const float*>(step.staged[i].host());
      step.values.insert(step.values.end(), from, from + step.inputs[i].width);
    }
    step.staged.clear();
  }
}

void VulkanDevice::Checkpoint() {
  Settle();
  while (!is_lost_ && !kept_.IsEmpty()) BringSomeKept();
}

// Values that were copied from each other come together: what is left to be computed again then
// starts from values that the host has not got newer.
void VulkanDevice::BringSomeKept() {
  DF_CHECK(is_settled_ && !kept_.IsEmpty());
  std::vector<std::pair<uint64_t, uint64_t>> stretches;  // of one allocation each
  for (const auto& [begin, end] : kept_.ranges()) {
    for (uint64_t at = begin; at < end;) {
      const auto allocation = std::prev(allocations_.upper_bound(at));
      const uint64_t last = std::min(end, allocation->first + allocation->second.bytes);
      stretches.emplace_back(at, last);
      at = last;
    }
  }
  const auto allocation_of = [this](uint64_t at) {
    return std::prev(allocations_.upper_bound(at))->first;
  };
  std::set<uint64_t> together;  // allocations
  uint64_t bytes = 0;
  for (const auto& [begin, end] : stretches) {
    bytes += end - begin;
    together.insert(allocation_of(begin));
    if (bytes >= kMostBroughtBytes) break;
  }
  for (bool grew = true; grew;) {
    grew = false;
    for (const KeptStep& step : journal_) {
      if (!step.from) continue;
      const uint64_t to = AllocationBegin(step.write);
      const uint64_t from = AllocationBegin(*step.from);
      if (together.contains(to) == together.contains(from)) continue;
      together.insert({to, from});
      grew = true;
    }
  }
  std::erase_if(stretches, [&](const auto& stretch) {
    return !together.contains(allocation_of(stretch.first));
  });
  std::vector<GpuArena::Piece> pieces;
  try {
    for (const auto& [begin, end] : stretches) {
      const GpuHeap::Piece& shadow = allocations_.at(allocation_of(begin)).shadow;
      const GpuArena::Piece piece = pieces.emplace_back(from_gpu_.Take(end - begin));
      Commands().Copy(*piece.buffer, piece.offset, shadow.buffer(),
                      shadow.offset() + begin - allocation_of(begin), end - begin);
    }
    KickAndWait();
  } catch (const Error& error) {
    Lose(error.what());
    return;
  }
  for (size_t i = 0; i < stretches.size(); ++i) {
    const auto [begin, end] = stretches[i];
    CopyToHost(begin, pieces[i].host(), end - begin);
    kept_.Remove(begin, end);
  }
  std::erase_if(journal_, [&](const KeptStep& step) {
    if (!together.contains(AllocationBegin(step.write))) return false;
    journal_bytes_ -= step.values.size() * sizeof(float);
    return true;
  });
  Forget();
}

bool VulkanDevice::DropKept(uint64_t begin, uint64_t end) {
  if (!kept_.Overlaps(begin, end)) return true;
  const auto meets = [&](const Rows& rows) { return rows.begin() < end && begin < rows.end(); };
  for (const KeptStep& step : journal_) {
    if (step.from && meets(*step.from)) return false;
    if (meets(step.write) && (step.write.begin() < begin || end < step.write.end())) return false;
  }
  std::erase_if(journal_, [&](const KeptStep& step) {
    if (!meets(step.write)) return false;
    journal_bytes_ -= step.values.size() * sizeof(float);
    return true;
  });
  kept_.Remove(begin, end);
  pending_.Remove(begin, end);
  return true;
}

}  // namespace deltafin
