// --effort and /effort: how much the model is asked to think.
#pragma once

#include <string>

#include "deltafin/chat.h"

namespace deltafin {

// none (no thinking at all), low, high or max. Throws Error(kInvalidArgument) naming `flag`.
ReasoningEffort ParseEffort(const std::string& flag, const std::string& text);

const char* EffortName(ReasoningEffort effort);

}  // namespace deltafin
