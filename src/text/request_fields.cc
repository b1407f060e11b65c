#include "text/request_fields.h"

#include <array>

#include "base/format.h"
#include "io/quote.h"
#include "text/python_json.h"

namespace deltafin {
namespace {

std::string Describe(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object()) return "an object";
  if (value->is_array()) return value->empty() ? "an empty array" : "an array";
  if (value->is_string()) return Quote(value->get_ref<const std::string&>(), 60);
  return Escape(DumpPython(*value, JsonStyle::kDefault), 60);
}

}  // namespace

void BadField(const std::string& path, std::string_view expected, const Json* got) {
  throw Error(ErrorCode::kInvalidArgument,
              format("{}: expected {}, got {}", path, expected, Describe(got)));
}

std::string FieldPath(const std::string& parent, std::string_view key) {
  return parent.empty() ? std::string(key) : format("{}.{}", parent, key);
}

const Json* FindField(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string StringField(const Json& object, std::string_view key, const std::string& path) {
  const Json* value = FindField(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) BadField(FieldPath(path, key), "a string", value);
  return value->get<std::string>();
}

const Json* ArrayField(const Json& object, std::string_view key, const std::string& path) {
  const Json* value = FindField(object, key);
  if (value != nullptr && !value->is_array()) BadField(FieldPath(path, key), "an array", value);
  return value;
}

bool IsBlank(std::string_view text) {
  // UTF-8 of the characters for which str.isspace() holds, beyond ASCII.
  static constexpr std::array<std::string_view, 19> kWide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
      "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  while (!text.empty()) {
    const char c = text.front();
    size_t length = (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= ' ') ? 1 : 0;
    for (const std::string_view space : kWide) {
      if (text.starts_with(space)) length = space.size();
    }
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace deltafin
