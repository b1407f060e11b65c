// What the command line's parser checks of flags and their values, in the words of all other
// errors.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "command_line.h"

namespace deltafin {

// For Option::transform: a decimal number in the range, without anything before or after it. What
// CLI11 itself takes for a number may be octal, hexadecimal, empty, or the nearest one that fits.
CLI::Validator WholeNumber(int64_t min = std::numeric_limits<int64_t>::min(),
                           int64_t max = std::numeric_limits<int64_t>::max());
// The same, of 64 bits without a sign.
CLI::Validator SeedNumber();

// For Option::check: a number in the range. Without a range also inf and nan, for whoever knows
// better what makes sense.
CLI::Validator Number();
CLI::Validator Number(double min, double max);

// The flag may be given again, each time with one value: what follows that is something else.
void AllowRepeats(CLI::Option* option);

// No flag of the commands takes an empty value, which is what an unset variable of a script leaves,
// but --system: its value may be no system message.
void RefuseEmptyValues(CLI::App& app);

}  // namespace deltafin
