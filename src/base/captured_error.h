// What an exception says, apart from the exception: to be thrown again by another thread. The
// object itself stays with the thread that caught it.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "deltafin/error.h"

namespace deltafin {

struct CapturedError {
  ErrorCode code = ErrorCode::kIo;
  std::string message;

  [[noreturn]] void Raise() const { throw Error(code, message); }
};

// `error` is not null. What is no Error counts as kIo.
inline CapturedError Capture(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::exception& e) {
    return {ErrorCode::kIo, e.what()};
  } catch (...) {
    return {ErrorCode::kIo, "unknown"};
  }
}

}  // namespace deltafin
