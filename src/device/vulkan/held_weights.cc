#include "device/vulkan/held_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "device/vulkan/lane_layout.h"

namespace deltafin {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{12} << 20;  // holds what the spine is read by
constexpr uint64_t kChunkBytes = uint64_t{256} << 20;
constexpr uint64_t kAlignment = 256;
constexpr int64_t kRowsOfATask = 8;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

template <class Fill>
void WeightStaging::WritePart(const GpuBuffer& to, uint64_t offset, uint64_t bytes,
                              const Fill& fill) {
  if (to.host() != nullptr) {
    fill(to.host() + offset);
    return;
  }
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  if (piece.ticket != 0) gpu_.Wait(piece.ticket);
  piece.ticket = 0;
  if (piece.buffer.size_bytes() < bytes) {
    piece.buffer = GpuBuffer();
    piece.buffer = GpuBuffer(gpu_, std::max(bytes, kStagingBytes), MemoryUse::kToGpu);
  }
  fill(piece.buffer.host());
  GpuCommands commands = gpu_.Begin();
  commands.Copy(to, offset, piece.buffer, 0, bytes);
  piece.ticket = gpu_.Submit(commands);
}

void WeightStaging::Write(const Matrix& w, const GpuBuffer& to, uint64_t offset) {
  const int64_t row_bytes = LaidOutRowBytes(w.format, w.cols);
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes) / row_bytes);
  for (int64_t row = 0; row < w.rows; row += step) {
    const int64_t rows = std::min(step, w.rows - row);
    WritePart(to, offset + static_cast<uint64_t>(row * row_bytes),
              static_cast<uint64_t>(rows * row_bytes), [&](std::byte* at) {
                pool_.ParallelFor(rows, kRowsOfATask, [&](int64_t begin, int64_t end) {
                  LayOutRows(w, row + begin, end - begin, at + begin * row_bytes);
                });
              });
  }
  if (w.format != WeightFormat::kInt8) return;
  const uint64_t scales = RoundUp(static_cast<uint64_t>(w.rows * row_bytes), 64);
  const auto bytes = static_cast<size_t>(w.rows) * sizeof(float);
  WritePart(to, offset + scales, bytes, [&](std::byte* at) { std::memcpy(at, w.scales, bytes); });
}

const HeldMatrix* HeldWeights::Find(uint64_t id) const {
  const auto found = held_.find(id);
  return found == held_.end() ? nullptr : &found->second;
}

const GpuBuffer* HeldWeights::Take(uint64_t bytes, uint64_t* offset) {
  const uint64_t rounded = RoundUp(bytes, kAlignment);
  if (chunks_.empty() || used_of_last_ + rounded > chunks_.back().size_bytes()) {
    const uint64_t left = capacity_bytes_ - std::min(capacity_bytes_, chunks_bytes_);
    if (rounded > left) return nullptr;
    try {
      chunks_.emplace_back(gpu_, std::clamp(left, rounded, std::max(rounded, kChunkBytes)),
                           MemoryUse::kWeights);
    } catch (const GpuLost&) {
      throw;
    } catch (const Error&) {
      capacity_bytes_ = chunks_bytes_;  // less memory is left than was planned with
      return nullptr;
    }
    chunks_bytes_ += chunks_.back().size_bytes();
    used_of_last_ = 0;
  }
  *offset = used_of_last_;
  used_of_last_ += rounded;
  taken_bytes_ += rounded;
  return &chunks_.back();
}

int WeightStaging::Quantum(const Matrix& w) {
  std::atomic<int> least = 1000;
  pool_.ParallelFor(w.rows, kRowsOfATask, [&](int64_t begin, int64_t end) {
    const int quantum = QuantumOf(w, begin, end - begin);
    int seen = least.load(std::memory_order_relaxed);
    while (quantum < seen && !least.compare_exchange_weak(seen, quantum)) {
    }
  });
  return least;
}

const HeldMatrix* HeldWeights::Add(const Matrix& w) {
  const int64_t row_bytes = LaidOutRowBytes(w.format, w.cols);
  const uint64_t rows = RoundUp(static_cast<uint64_t>(w.rows * row_bytes), 64);
  const bool int8 = w.format == WeightFormat::kInt8;
  uint64_t offset = 0;
  const GpuBuffer* const buffer =
      Take(rows + (int8 ? static_cast<uint64_t>(w.rows) * sizeof(float) : 0), &offset);
  if (buffer == nullptr) return nullptr;
  staging_.Write(w, *buffer, offset);
  const VkDeviceAddress address = buffer->address() + offset;
  const HeldMatrix held{address, int8 ? address + rows : 0, staging_.Quantum(w)};
  return &held_.emplace(w.id, held).first->second;
}

void HeldWeights::Forget() {
  held_.clear();
  capacity_bytes_ = 0;
}

}  // namespace deltafin
