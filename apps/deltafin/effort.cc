#include "effort.h"

#include <array>

#include "deltafin/error.h"

namespace deltafin {

const char* EffortName(ReasoningEffort effort) {
  constexpr std::array kNames = {"none", "low", "high", "max"};
  return kNames.at(static_cast<size_t>(effort));
}

ReasoningEffort ParseEffort(const std::string& flag, const std::string& text) {
  for (const ReasoningEffort effort : {ReasoningEffort::kNone, ReasoningEffort::kLow,
                                       ReasoningEffort::kHigh, ReasoningEffort::kMax}) {
    if (text == EffortName(effort)) return effort;
  }
  throw Error(ErrorCode::kInvalidArgument,
              flag + ": expected none, low, high or max, got \"" + text + "\"");
}

}  // namespace deltafin
