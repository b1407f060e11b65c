// Access to the fields of a request, with errors that name the field.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "deltafin/json.h"

namespace deltafin {

// An object of a request. All functions throw ApiError(400) for a value of another type or outside
// the range; a field that is null is absent.
class JsonFields {
 public:
  // `path`: of the object in the request, "" for the request itself.
  JsonFields(const Json& object, std::string path);

  const Json* Find(std::string_view name);
  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<std::string> String(std::string_view name);
  const Json* Array(std::string_view name);
  const Json* Object(std::string_view name);

  std::string PathOf(std::string_view name) const;
  [[noreturn]] void Bad(std::string_view name, const std::string& expected) const;
  // Refuses the field if it is there.
  void Refuse(std::string_view name, const std::string& why);
  // Nothing depends on the field.
  void Accept(std::string_view name) { (void)Find(name); }

  // The fields that nobody asked for, also those of objects inside that AddUnknownOf told of.
  std::vector<std::string> unknown() const;
  void AddUnknownOf(const JsonFields& inner);

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> unknown_inside_;  // paths
};

// The object that a request consists of. Throws ApiError(400).
Json ParseRequestBody(const std::string& body);

}  // namespace deltafin
