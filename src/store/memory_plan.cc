#include "store/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/format.h"
#include "device/weight_keeper.h"
#include "io/read_queue.h"
#include "store/layout.h"
#include "store/spine_pieces.h"
#include "store/spine_reader.h"

namespace deltafin {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// Streaming needs the piece that is in use and one that is read meanwhile; a third keeps the disk
// from waiting for the computation.
constexpr uint64_t kLeastRingPieces = 3;
// What the ring may grow to: some tenths of a second of a fast disk, the time that experts take
// before the next spine matrix is used.
constexpr uint64_t kMostRingBytes = 512 * kMiB;
// Slots beyond these help only when the spine no longer needs the memory: a cache smaller than one
// token's experts has next to no hits.
constexpr int64_t kMostEarlySlots = 4;  // times the experts per token

// What is left when everything has its least is divided in this many parts.
constexpr uint64_t kParts = 16;
constexpr uint64_t kWorkspaceParts = 2;
constexpr uint64_t kSlotParts = 2;
constexpr uint64_t kRingParts = 1;  // the spine gets the rest, and what these do not need

// A desktop keeps 10 GB or 18 %, whichever is more, but a small machine never more than half.
uint64_t SystemReserve(uint64_t limit) {
  const uint64_t wanted = std::max<uint64_t>(10'000'000'000, limit / 100 * 18);
  return std::min(wanted, limit / 2);
}

// Of what other programs leave, a part stays free: they go on working, and so does the page cache.
uint64_t KeptAvailable(uint64_t available) {
  return std::min<uint64_t>(available / 8, 2'000'000'000);
}

void ChooseBudget(const MemoryLimits& limits, uint64_t ram_bytes, MemoryPlan& plan) {
  plan.limit_bytes = limits.limit_bytes;
  plan.limit_name = limits.limited_by;
  plan.limited_by = limits.limited_by;
  plan.available_bytes = limits.available_bytes;
  if (ram_bytes != 0) {
    plan.budget_bytes = std::min(ram_bytes, limits.limit_bytes);
    if (ram_bytes < limits.limit_bytes) plan.limited_by = "--ram";
    return;
  }
  plan.budget_bytes = limits.limit_bytes - SystemReserve(limits.limit_bytes);
  // 0: the system does not say.
  const uint64_t available = limits.available_bytes - KeptAvailable(limits.available_bytes);
  if (limits.available_bytes != 0 && available < plan.budget_bytes) {
    plan.budget_bytes = available;
    plan.limited_by += ", most of it in use by other programs";
  }
  plan.reserve_bytes = limits.limit_bytes - plan.budget_bytes;
}

// What the GPU keeps, in the order in which pieces would become resident. Of matrices that are used
// whole it has copies.
void ChooseKept(const SpineSource& spine, const SpinePieces& pieces, uint64_t device_bytes,
                MemoryPlan& plan) {
  if (device_bytes == 0) return;
  plan.spine.kept.assign(pieces.size(), false);
  plan.spine.copied.assign(pieces.size(), false);
  for (size_t i : pieces.ResidentOrder()) {
    const SpinePiece& piece = pieces[i];
    const StoredMatrix& matrix =
        spine.layers[static_cast<size_t>(piece.layer)].matrices[piece.matrix];
    const uint64_t bytes = KeptBytes({matrix.format, piece.num_rows, matrix.cols});
    if (plan.device_spine_bytes + bytes > device_bytes) return;
    (pieces.IsWhole(i) ? plan.spine.copied : plan.spine.kept)[i] = true;
    plan.device_spine_bytes += bytes;
  }
}

// As many pieces as fit, in the order of their worth.
void ChooseResident(const SpinePieces& pieces, uint64_t share_bytes, MemoryPlan& plan) {
  plan.spine.resident.assign(pieces.size(), false);
  plan.spine_is_resident = true;
  for (size_t i : pieces.ResidentOrder()) {
    if (!plan.spine.kept.empty() && plan.spine.kept[i]) continue;
    const uint64_t bytes = ReadBufferBytes(pieces[i].bytes);
    plan.spine_is_resident &= plan.spine_bytes + bytes <= share_bytes;
    if (plan.spine_is_resident) {
      plan.spine.resident[i] = true;
      plan.spine_bytes += bytes;
    } else {
      plan.streamed_spine_bytes += pieces[i].bytes;
    }
  }
}

// Of the whole spine in RAM.
uint64_t ResidentBytes(const SpinePieces& pieces) {
  uint64_t all = 0;
  for (size_t i = 0; i < pieces.size(); ++i) all += ReadBufferBytes(pieces[i].bytes);
  return all;
}

// What pin_layers allows: every part of the spine counts alike (SpinePieces::ResidentOrder).
uint64_t MostSpineBytes(const SpinePieces& pieces, int64_t pin_layers, int64_t num_layers) {
  if (pin_layers < 0 || pin_layers >= num_layers) return std::numeric_limits<uint64_t>::max();
  return ResidentBytes(pieces) / static_cast<uint64_t>(num_layers) *
         static_cast<uint64_t>(pin_layers);
}

// The least that works: the fewest positions at a time, a short ring, one position's experts.
struct Floor {
  uint64_t workspace_bytes = 0;
  uint64_t ring_bytes = 0;
  int64_t slots = 0;
};

std::string Size(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  return bytes < kGiB ? format("{:.0f} MiB", b / kMiB) : format("{:.2f} GiB", b / kGiB);
}

// Rounded up, so that what is printed really is enough.
std::string RamFlag(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < kGiB) return format("{:.0f}M", std::ceil(b / kMiB));
  return format("{:.2f}G", std::ceil(b / kGiB * 100) / 100);
}

BudgetError TooSmall(const MemoryPlan& plan, uint64_t least) {
  const uint64_t states = plan.state_bytes + plan.snapshot_bytes;
  const uint64_t rest = least - plan.program_bytes - plan.gpu_bytes - states;
  const std::string gpu = plan.gpu_bytes == 0 ? "" : format("GPU {}, ", Size(plan.gpu_bytes));
  const char* advice =
      least <= plan.limit_bytes
          ? "pass a larger --ram, a smaller --context or --context-in-ram, or --cache bf16"
          : "pass a smaller --context or --context-in-ram, or --cache bf16, or use a larger "
            "machine";
  return {format("the memory budget of {} ({}) is too small for this model: it needs at least "
                 "--ram {} (program {}, {}session state {}, the rest {}); {}{}",
                 Size(plan.budget_bytes), plan.limited_by, RamFlag(least), Size(plan.program_bytes),
                 gpu, Size(states), Size(rest), advice,
                 plan.gpu_bytes == 0 ? "" : ", or pass --device cpu"),
          least};
}

int64_t MostPositions(const PlanRequest& request, uint64_t workspace_bytes) {
  int64_t fits = request.min_positions;
  int64_t too_many = request.max_positions + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (request.workspace_bytes(middle) <= workspace_bytes ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace

uint64_t BudgetBytes(const MemoryLimits& limits, uint64_t ram_bytes) {
  MemoryPlan plan;
  ChooseBudget(limits, ram_bytes, plan);
  return plan.budget_bytes;
}

uint64_t TablesBytes(const Checkpoint& checkpoint, const SpineSource& spine) {
  constexpr uint64_t kLine = 64;  // each begins at a cache line
  const auto padded = [](int64_t floats) {
    return (static_cast<uint64_t>(floats) * sizeof(float) + kLine - 1) / kLine * kLine;
  };
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < spine.layers.size(); ++layer) {
    bytes += padded(spine.layers[layer].num_scales);
    const LayerLayout layout = LayoutOfSpine(checkpoint.config(), static_cast<int64_t>(layer));
    for (const VectorSpec& vector : layout.vectors) bytes += padded(vector.size);
  }
  return bytes;
}

MemoryPlan PlanMemory(const Checkpoint& checkpoint, const SpineSource& spine,
                      const MemoryLimits& limits, const PlanRequest& request) {
  const ModelConfig& config = checkpoint.config();
  MemoryPlan plan;
  ChooseBudget(limits, request.ram_bytes, plan);
  plan.spine.piece_bytes = SpinePieces::UsualPieceBytes(spine);
  const SpinePieces pieces(spine, plan.spine.piece_bytes);
  plan.program_bytes = request.program_bytes;
  plan.gpu_bytes = request.gpu_bytes;
  plan.state_bytes = request.state_bytes;
  plan.snapshot_bytes = request.snapshot_bytes;
  plan.tables_bytes = TablesBytes(checkpoint, spine);

  const Floor floor{request.workspace_bytes(request.min_positions),
                    std::min(pieces.TotalRingBytes(), kLeastRingPieces * pieces.LargestRingBytes()),
                    config.experts_per_token};
  const uint64_t expert_bytes = ReadBufferBytes(checkpoint.expert_bytes());
  const uint64_t always = plan.program_bytes + plan.gpu_bytes + plan.state_bytes +
                          plan.snapshot_bytes + plan.tables_bytes + pieces.WholeBytes();
  const uint64_t least = always + floor.workspace_bytes + floor.ring_bytes +
                         static_cast<uint64_t>(floor.slots) * expert_bytes;
  if (least > plan.budget_bytes) throw TooSmall(plan, least);

  // Shares of what is left. All of them grow with the budget, whole parts at a time, so that no
  // share takes more than was added.
  const uint64_t part = (plan.budget_bytes - least) / kParts;
  const int64_t most_slots = std::max<int64_t>(floor.slots, config.num_layers * config.num_experts);
  const uint64_t workspace_share =
      std::min(kWorkspaceParts * part,
               request.workspace_bytes(request.max_positions) - floor.workspace_bytes);
  const uint64_t ring_share =
      std::min(kRingParts * part,
               std::max(floor.ring_bytes, std::min(kMostRingBytes, pieces.TotalRingBytes())) -
                   floor.ring_bytes);
  const uint64_t slot_share = std::min(
      kSlotParts * part, static_cast<uint64_t>((kMostEarlySlots - 1) * floor.slots) * expert_bytes);
  const uint64_t most_spine = MostSpineBytes(pieces, request.pin_layers, config.num_layers);
  uint64_t spine_share =
      std::min(kParts * part - workspace_share - ring_share - slot_share, most_spine);
  // Where the ring would hold all that is streamed, it is better spent on keeping that.
  const uint64_t all = ResidentBytes(pieces);
  const uint64_t rings = floor.ring_bytes + ring_share + pieces.WholeBytes();
  if (request.device_bytes == 0 && most_spine >= all && spine_share + rings >= all) {
    spine_share = all;
  }

  plan.positions = MostPositions(request, floor.workspace_bytes + workspace_share);
  plan.workspace_bytes = request.workspace_bytes(plan.positions);
  plan.spine.ring_bytes = (floor.ring_bytes + ring_share) / kReadAlignment * kReadAlignment;
  plan.expert_slots = floor.slots + static_cast<int64_t>(slot_share / expert_bytes);

  ChooseKept(spine, pieces, request.device_bytes, plan);
  ChooseResident(pieces, spine_share, plan);
  plan.buffer_bytes = plan.spine.ring_bytes + pieces.WholeBytes();
  // What the GPU keeps passes through the ring once, or again should the GPU be lost.
  if (plan.spine_is_resident && plan.device_spine_bytes == 0) {
    plan.spine.ring_bytes = 0;
    plan.buffer_bytes = 0;
  }
  if (plan.spine_is_resident || request.pin_layers >= 0) {
    // The whole share of the workspace, which grows evenly, not what its positions take of it.
    const uint64_t others =
        plan.used_bytes() - plan.workspace_bytes + floor.workspace_bytes + workspace_share;
    plan.expert_slots = static_cast<int64_t>((plan.budget_bytes - others) / expert_bytes);
  }
  plan.expert_slots = std::clamp(plan.expert_slots, floor.slots, most_slots);
  plan.expert_bytes = static_cast<uint64_t>(plan.expert_slots) * expert_bytes;
  DF_CHECK(plan.used_bytes() <= plan.budget_bytes);
  return plan;
}

}  // namespace deltafin
