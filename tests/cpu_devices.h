// Tests that run on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "device/cpu/cpu_device.h"

namespace deltafin {

class OnEveryCpuIsa : public ::testing::TestWithParam<CpuIsa> {
 protected:
  OnEveryCpuIsa() : pool_(2), owned_(MakeCpuDevice(pool_, GetParam())), device_(*owned_) {}

 private:
  ThreadPool pool_;
  std::unique_ptr<Device> owned_;

 protected:
  Device& device_;
};

inline std::string IsaTestName(const ::testing::TestParamInfo<CpuIsa>& parameter) {
  std::string name(CpuIsaName(parameter.param));
  name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
  return name;
}

}  // namespace deltafin
