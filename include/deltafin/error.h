// Errors that end an operation: a bad checkpoint, a failed read, an impossible request.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace deltafin {

enum class ErrorCode {
  kInvalidArgument,  // a flag, an option or a request is wrong
  kNotFound,         // a file or a tensor is missing
  kCorrupt,          // bytes are there and are not what they must be
  kUnsupported,      // well-formed, but a feature that Kimi K3 does not have or we do not
  kIo,               // the operating system refused a read or a write
  kNoSpace,          // the disk is full
  kNetwork,          // the hub or the way to it failed
  kOutOfMemory,      // does not fit the memory plan
  kCancelled,        // stopped on request
};

// The message is one sentence or two for a person: what, where, expected, got, what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace deltafin
