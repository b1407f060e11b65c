// JSON as Python's json.loads and json.dumps(ensure_ascii=False) read and write it: the model was
// trained on their output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "deltafin/json.h"

namespace deltafin {

enum class JsonStyle : uint8_t {
  kDefault,        // separators ", " and ": ", keys in the order of the object
  kSortedCompact,  // separators "," and ":", the keys of every object sorted by code point
};

// Parses with the digits of big integers kept (io/json.h), so that DumpPython prints them all.
// Throws Error(kCorrupt).
Json ParsePythonJson(std::string_view text, const std::string& name);

// Numbers come out as Python prints what it has read: 1.0, 100000.0, 1e+22.
std::string DumpPython(const Json& value, JsonStyle style);

// `text` as a JSON string with its quotes.
std::string QuotePython(std::string_view text);

}  // namespace deltafin
