// DF_CHECK: our own invariants, checked in release builds too. A failure is a bug of ours and ends
// the process; nothing that comes from a file, a flag or a request may reach one.
#pragma once

namespace deltafin {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line) noexcept;

}  // namespace deltafin

#define DF_CHECK(condition)                                    \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      ::deltafin::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)
