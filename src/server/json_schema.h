// A JSON schema in the form that json_acceptor.h walks: the subset that can be checked while a text
// is written (docs/server.md lists it).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltafin/json.h"

namespace deltafin {

// A set of JSON types.
enum JsonTypes : unsigned {
  kJsonNull = 1,
  kJsonBoolean = 2,
  kJsonInteger = 4,  // a number without fraction and exponent
  kJsonNumber = 8,   // any number
  kJsonString = 16,
  kJsonArray = 32,
  kJsonObject = 64,
  kJsonAny = 127 - kJsonInteger,
};

struct SchemaProperty {
  std::string name;
  std::string spelling;  // in a JSON text, without the quotation marks
  int node = 0;
  bool required = false;
};

// What a value must be. Nodes refer to one another by index.
struct SchemaNode {
  std::vector<int> any_of;            // not empty: a value of one of these, nothing below counts
  std::vector<std::string> literals;  // not empty: one of these compact JSON texts
  unsigned types = kJsonAny;
  int64_t min_length = 0;  // of strings, in characters
  int64_t max_length = INT64_MAX;
  int64_t min_items = 0;
  int64_t max_items = INT64_MAX;
  std::vector<int> first_items;  // of the items at the begin
  int items = kAnyNode;          // of the others
  std::vector<SchemaProperty> properties;
  int additional = kAnyNode;  // of properties that are not listed

  static constexpr int kAnyNode = 0;   // the node that every schema begins with
  static constexpr int kNothing = -1;  // in place of a node: there can be none
};

struct JsonSchema {
  std::vector<SchemaNode> nodes;
  int root = 0;
};

// Throws Error(kUnsupported) for a keyword outside of the subset, Error(kInvalidArgument) for a
// schema that is none or that no value can match. Messages begin with the place: `path` and what
// follows inside of it.
std::shared_ptr<const JsonSchema> CompileSchema(const Json& schema, const std::string& path);

// Any object.
std::shared_ptr<const JsonSchema> AnyObjectSchema();

}  // namespace deltafin
