// Engines with as little memory as they run in.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "engine/engine_impl.h"
#include "store/memory_plan.h"

namespace deltafin {

// The smallest budget that the engine says would do.
inline uint64_t LeastRam(EngineOptions options) {
  options.ram_bytes = 1;
  try {
    EngineImpl engine(options);
  } catch (const BudgetError& e) {
    return e.least_bytes();
  }
  ADD_FAILURE() << "a byte is enough?";
  return 0;
}

// The heap of the process keeps some of what was freed, a sanitizer's nearly all, and an emulator
// something of every thread: what the program takes grows from one opening to the next. Then the
// budget follows, and overtakes it sooner or later.
inline std::unique_ptr<EngineImpl> OpenAndFollow(EngineOptions& options,
                                                 const EngineParts& parts = {}) {
  for (uint64_t attempt = 1;; ++attempt) {
    try {
      return std::make_unique<EngineImpl>(options, parts);
    } catch (const BudgetError& e) {
      if (attempt == 200) throw;
      options.ram_bytes = e.least_bytes() + (attempt << 16);
    }
  }
}

}  // namespace deltafin
