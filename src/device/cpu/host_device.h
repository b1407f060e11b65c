// What every CPU backend shares: device memory is host memory, and nothing runs later.
#pragma once

#include "base/thread_pool.h"
#include "device/device.h"

namespace deltafin {

class HostDevice : public Device {
 public:
  explicit HostDevice(ThreadPool& pool) : pool_(pool) {}

  void* Allocate(size_t bytes) override;
  void Free(void* address) noexcept override;
  void ToHost(void* host_dst, const void* src, size_t bytes) override;
  void ToDevice(void* dst, const void* host_src, size_t bytes) override;
  void Copy(void* dst, const void* src, size_t bytes) override;
  void Synchronize() override {}
  bool ReadsHostPages() const override { return true; }

 protected:
  ThreadPool& pool() { return pool_; }
  const ThreadPool& pool() const { return pool_; }

 private:
  ThreadPool& pool_;
};

}  // namespace deltafin
