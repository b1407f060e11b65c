// JSON for everything that is not huge. The only place that includes nlohmann.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "deltafin/error.h"

namespace deltafin {

// Objects keep the order in which their keys were written (tool declarations depend on it).
using Json = nlohmann::ordered_json;

// What becomes of an integer that does not fit 64 bits.
enum class BigIntegers : uint8_t {
  kRounded,   // the nearest double, as of every JSON reader
  kVerbatim,  // a Json of type binary (which no text can make otherwise) that holds its digits
};

// Parses a document, at most `max_depth` levels deep. `name` is what messages call it. Duplicate
// keys: the last one wins. Throws Error(kCorrupt) with line and column.
Json ParseJson(std::string_view text, const std::string& name, int max_depth = 64,
               BigIntegers big_integers = BigIntegers::kRounded);

// The document on one line. Bytes that are not UTF-8, which names of files and what was typed may
// have, become U+FFFD (a plain dump() throws).
std::string DumpJson(const Json& json);

}  // namespace deltafin
