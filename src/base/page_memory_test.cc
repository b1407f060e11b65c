#include "base/page_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "deltafin/error.h"

namespace deltafin {
namespace {

TEST(PageBufferTest, IsZeroAlignedAndMoves) {
  PageBuffer buffer(100000);
  ASSERT_EQ(buffer.size(), 100000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
  for (size_t i = 0; i < buffer.size(); ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
  buffer.data()[99999] = std::byte{7};
  PageBuffer other(std::move(buffer));
  EXPECT_EQ(other.data()[99999], std::byte{7});
  other = PageBuffer();
  EXPECT_EQ(other.data(), nullptr);
  EXPECT_EQ(PageBuffer(0).data(), nullptr);
}

TEST(PageBufferTest, SaysWhenThereIsNoMemory) {
  try {
    PageBuffer buffer(std::numeric_limits<size_t>::max() / 4);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace deltafin
