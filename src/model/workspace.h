// Scratch memory of a pass: taken in a stack, given back by scope.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "device/device.h"

namespace deltafin {

// A stack of float arrays in device memory. What a frame took is free again when the frame ends;
// contents are not initialised. Not thread-safe.
class Workspace {
 public:
  explicit Workspace(Device& device) : device_(device) {}

  // Room for at least `floats`, between passes only. Throws Error(kOutOfMemory).
  void Reserve(int64_t floats) {
    DF_CHECK(used_ == 0);
    if (floats <= capacity_) return;
    buffer_ = DeviceBuffer();  // the old one goes before the new one comes
    capacity_ = 0;
    buffer_ = DeviceBuffer(device_, static_cast<size_t>(floats) * sizeof(float));
    capacity_ = floats;
  }

  class Frame {
   public:
    explicit Frame(Workspace& workspace) : workspace_(workspace), mark_(workspace.used_) {}
    ~Frame() {
      workspace_.device_.Discard(workspace_.buffer_.floats() + mark_,
                                 static_cast<size_t>(workspace_.used_ - mark_) * sizeof(float));
      workspace_.used_ = mark_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    float* Take(int64_t floats) {
      float* p = workspace_.buffer_.floats() + workspace_.used_;
      workspace_.used_ += Rounded(floats);
      DF_CHECK(workspace_.used_ <= workspace_.capacity_);
      return p;
    }

   private:
    Workspace& workspace_;
    int64_t mark_;
  };

  // What Take really uses: arrays start at multiples of 64 bytes.
  static int64_t Rounded(int64_t floats) { return (floats + 15) / 16 * 16; }

 private:
  Device& device_;
  DeviceBuffer buffer_;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

}  // namespace deltafin
