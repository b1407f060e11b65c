// std::from_chars of a double, also where the standard library has only those of integers.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <version>

#if !defined(__cpp_lib_to_chars)
#include <cstdlib>
#endif

namespace deltafin {

inline std::from_chars_result DoubleFromText(std::string_view text, double& value) {
  const char* const begin = text.data();
#if defined(__cpp_lib_to_chars)
  return std::from_chars(begin, begin + text.size(), value);
#else
  // Of what strtod takes and from_chars does not: space, plus and hexadecimal digits.
  constexpr std::string_view kFirst = "-.0123456789";
  const std::string digits(text.substr(0, text.find_first_of("xX")));
  if (digits.empty() || kFirst.find(digits[0]) == std::string_view::npos) {
    return {begin, std::errc::invalid_argument};
  }
  char* end = nullptr;
  const double parsed = std::strtod(digits.c_str(), &end);
  if (end == digits.c_str()) return {begin, std::errc::invalid_argument};
  value = parsed;
  return {begin + (end - digits.c_str()), std::errc()};
#endif
}

}  // namespace deltafin
