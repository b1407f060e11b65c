#include "device/vulkan/gpu_heap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/vulkan/vulkan_test_util.h"

namespace deltafin {
namespace {

TEST(GpuHeap, PiecesNeverOverlapAndAllMemoryGoesBack) {
  const auto instance = VulkanInstance::Create();
  Gpu gpu(instance, TestGpuNumber(*instance));
  constexpr uint64_t kChunk = 1 << 16;
  GpuHeap heap(gpu, kChunk);
  struct Taken {
    GpuHeap::Piece piece;
    uint64_t bytes = 0;
  };
  std::vector<Taken> taken;
  std::mt19937 random(5);
  for (int i = 0; i < 600; ++i) {
    if (random() % 5 < 3) {
      const uint64_t bytes = random() % (i % 50 == 0 ? 2 * kChunk : kChunk / 8);
      const GpuHeap::Piece piece = heap.Take(bytes);
      EXPECT_EQ(piece.address() % 256, 0u);
      EXPECT_LE(piece.offset() + bytes, piece.buffer().size_bytes());
      for (const Taken& other : taken) {
        const uint64_t begin = piece.address(), other_begin = other.piece.address();
        EXPECT_TRUE(begin + bytes <= other_begin || other_begin + other.bytes <= begin);
      }
      taken.push_back({piece, bytes});
    } else if (!taken.empty()) {
      const size_t which = random() % taken.size();
      heap.Give(taken[which].piece);
      taken.erase(taken.begin() + static_cast<long>(which));
    }
  }
  EXPECT_GT(heap.chunks_bytes(), kChunk);
  for (Taken& each : taken) heap.Give(each.piece);
  EXPECT_EQ(heap.chunks_bytes(), 0u);
}

}  // namespace
}  // namespace deltafin
