#include "server/json_fields.h"

#include <utility>

#include "base/format.h"
#include "io/quote.h"
#include "server/api_error.h"

namespace deltafin {
namespace {

std::string Describe(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.empty() ? "an empty array" : "an array";
  if (value.is_string()) return Quote(value.get_ref<const std::string&>(), 60);
  return value.dump();
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const Json* JsonFields::Find(std::string_view name) {
  known_.emplace(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> JsonFields::Bool(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Bad(name, "true or false");
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::Int(std::string_view name, int64_t min, int64_t max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const bool is_big =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value->is_number_integer() || is_big || value->get<int64_t>() < min ||
      value->get<int64_t>() > max) {
    const bool has_limit = max != INT64_MAX || min == INT64_MIN || is_big;
    Bad(name, has_limit ? format("a whole number from {} to {}", min, max)
                        : format("a whole number, at least {}", min));
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::Number(std::string_view name, double min, double max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    Bad(name, format("a number from {} to {}", min, max));
  }
  return value->get<double>();
}

std::optional<std::string> JsonFields::String(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Bad(name, "a string");
  return value->get<std::string>();
}

const Json* JsonFields::Array(std::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_array()) Bad(name, "an array");
  return value;
}

const Json* JsonFields::Object(std::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) Bad(name, "an object");
  return value;
}

std::string JsonFields::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

void JsonFields::Bad(std::string_view name, const std::string& expected) const {
  const auto it = object_.find(name);
  const std::string got = it == object_.end() ? "nothing" : Describe(*it);
  const std::string path = PathOf(name);
  throw ApiError(400, path + ": expected " + expected + ", got " + got, path);
}

void JsonFields::Refuse(std::string_view name, const std::string& why) {
  if (Find(name) == nullptr) return;
  const std::string path = PathOf(name);
  throw ApiError(400, path + ": " + why, path, "unsupported");
}

std::vector<std::string> JsonFields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) == 0) names.push_back(name);
  }
  names.insert(names.end(), unknown_inside_.begin(), unknown_inside_.end());
  return names;
}

void JsonFields::AddUnknownOf(const JsonFields& inner) {
  for (const std::string& name : inner.unknown()) unknown_inside_.push_back(inner.PathOf(name));
}

Json ParseRequestBody(const std::string& body) {
  Json json;
  try {
    json = ParseJson(body, "request body");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "", "invalid_json");
  }
  if (!json.is_object()) throw ApiError(400, "request body: expected a JSON object");
  return json;
}

}  // namespace deltafin
