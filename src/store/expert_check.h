// What can be told of an expert's bytes by looking at them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "deltafin/error.h"
#include "store/checkpoint.h"

namespace deltafin {

// What went wrong with an expert, kept without the exception object so that threads share none.
struct ExpertFailure {
  ErrorCode code = ErrorCode::kIo;
  std::string message;
};

// `span` are the bytes of an expert. A scale byte of 255 is not a number: then they are not one.
std::optional<ExpertFailure> CheckExpertBytes(const Checkpoint& checkpoint, int64_t layer,
                                              int64_t expert, const std::byte* span) noexcept;

// The failure of a read, with the expert's name before the message.
ExpertFailure ExpertReadFailure(const Checkpoint& checkpoint, int64_t layer, int64_t expert,
                                const std::exception_ptr& error) noexcept;

}  // namespace deltafin
