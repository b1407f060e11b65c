// The markup of chat segments, for tests.
#pragma once

#include <string>

namespace deltafin {

inline std::string Open(const std::string& tag) { return "<|open|>" + tag + "<|sep|>"; }
inline std::string Close(const std::string& tag) { return "<|close|>" + tag + "<|sep|>"; }
inline std::string Element(const std::string& tag, const std::string& inner) {
  return Open(tag) + inner + Close(tag.substr(0, tag.find(' ')));
}
inline std::string Argument(const std::string& key, const std::string& type,
                            const std::string& value) {
  return Element("argument key=\"" + key + "\" type=\"" + type + "\"", value);
}

}  // namespace deltafin
