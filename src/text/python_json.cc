#include "text/python_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/check.h"
#include "base/format.h"

namespace deltafin {
namespace {

// float.__repr__: the shortest digits that read back as the same number; with an exponent where the
// decimal point would stand more than 3 places before the digits or 16 places after their begin.
std::string PythonFloat(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                          std::chars_format::scientific);
  DF_CHECK(error == std::errc());
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));  // -d.ddde+xx
  const std::string sign = text.starts_with('-') ? "-" : "";
  text.remove_prefix(sign.size());
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_begin = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_begin, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return sign + std::string(text);

  std::string digits(1, text[0]);
  if (e > 2) digits.append(text.substr(2, e - 2));
  const auto zeros = [](size_t count) { return std::string(count, '0'); };
  if (exponent < 0)
    return format("{}0.{}{}", sign, zeros(static_cast<size_t>(-exponent - 1)), digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits += zeros(whole + 1 - digits.size());
  return format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

class Writer {
 public:
  explicit Writer(JsonStyle style)
      : sorted_(style == JsonStyle::kSortedCompact),
        comma_(sorted_ ? "," : ", "),
        colon_(sorted_ ? ":" : ": ") {}

  void Write(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        return WriteObject(value.get_ref<const Json::object_t&>());
      case Json::value_t::array:
        return WriteArray(value.get_ref<const Json::array_t&>());
      case Json::value_t::string:
        out_ += QuotePython(value.get_ref<const std::string&>());
        return;
      case Json::value_t::number_float:
        out_ += PythonFloat(value.get<double>());
        return;
      case Json::value_t::binary:  // a big integer
        out_.append(value.get_binary().begin(), value.get_binary().end());
        return;
      default:
        out_ += value.dump();
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void WriteObject(const Json::object_t& object) {
    using Member = Json::object_t::value_type;
    std::vector<const Member*> members;
    members.reserve(object.size());
    for (const Member& member : object) members.push_back(&member);
    // The order of UTF-8 bytes is the order of code points, which is Python's.
    const auto by_key = [](const Member* a, const Member* b) { return a->first < b->first; };
    if (sorted_) std::sort(members.begin(), members.end(), by_key);

    out_ += '{';
    for (const Member* member : members) {
      if (member != members.front()) out_ += comma_;
      out_ += QuotePython(member->first);
      out_ += colon_;
      Write(member->second);
    }
    out_ += '}';
  }

  void WriteArray(const Json::array_t& array) {
    out_ += '[';
    for (size_t i = 0; i < array.size(); ++i) {
      if (i > 0) out_ += comma_;
      Write(array[i]);
    }
    out_ += ']';
  }

  const bool sorted_;
  const std::string_view comma_;
  const std::string_view colon_;
  std::string out_;
};

}  // namespace

Json ParsePythonJson(std::string_view text, const std::string& name) {
  constexpr int kMaxDepth = 64;
  return ParseJson(text, name, kMaxDepth, BigIntegers::kVerbatim);
}

std::string DumpPython(const Json& value, JsonStyle style) {
  Writer writer(style);
  writer.Write(value);
  return writer.Take();
}

std::string QuotePython(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

}  // namespace deltafin
