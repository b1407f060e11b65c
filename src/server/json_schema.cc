#include "server/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "deltafin/error.h"

namespace deltafin {
namespace {

constexpr size_t kMaxNodes = 4096;
constexpr size_t kMaxLiterals = 1024;

// Say something about values, not which values there can be.
constexpr std::array kAnnotations = {"title",    "description", "default",         "examples",
                                     "$schema",  "$id",         "$comment",        "$anchor",
                                     "readOnly", "writeOnly",   "deprecated",      "format",
                                     "$defs",    "definitions", "contentMediaType"};

[[noreturn]] void Bad(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, path + ": " + message);
}

std::string SpellingOf(const std::string& name) {
  const std::string quoted = DumpJson(name);
  return quoted.substr(1, quoted.size() - 2);
}

unsigned TypeOf(const Json& value) {
  if (value.is_null()) return kJsonNull;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_number_integer()) return kJsonInteger | kJsonNumber;
  if (value.is_number()) return kJsonNumber;
  if (value.is_string()) return kJsonString;
  return value.is_array() ? kJsonArray : kJsonObject;
}

class Compiler {
 public:
  Compiler(const Json& root, std::string path) : root_(root), path_(std::move(path)) {
    schema_.nodes.emplace_back();
  }

  std::shared_ptr<const JsonSchema> Compile() {
    schema_.root = At(root_, "");
    RemoveImpossible();
    return std::make_shared<const JsonSchema>(std::move(schema_));
  }

 private:
  std::string Where(const std::string& pointer) const { return path_ + pointer; }
  SchemaNode& Node(int index) { return schema_.nodes[static_cast<size_t>(index)]; }

  // The node of the schema at a place ("/properties/a"): one for each place, so that recursive
  // schemas end.
  int At(const Json& json, const std::string& pointer) {
    const auto [it, is_new] = node_at_.try_emplace(pointer, static_cast<int>(schema_.nodes.size()));
    if (!is_new) return it->second;
    if (schema_.nodes.size() >= kMaxNodes) Bad(path_, "the schema is too large");
    const int index = it->second;
    schema_.nodes.emplace_back();
    if (json.is_boolean()) {
      if (!json.get<bool>()) Bad(Where(pointer), "false allows no value");
      Node(index).any_of = {SchemaNode::kAnyNode};
      return index;
    }
    if (!json.is_object()) Bad(Where(pointer), "expected a schema: an object, true or false");
    SchemaNode node = Read(json, pointer);
    Node(index) = std::move(node);
    return index;
  }

  SchemaNode Read(const Json& json, const std::string& pointer) {
    SchemaNode node;
    for (const auto& [key, value] : json.items()) ReadKeyword(key, value, json, pointer, &node);
    if (!node.any_of.empty()) return node;
    if (json.contains("enum") || json.contains("const")) {
      node.literals = ReadLiterals(json, pointer, node.types);
      return node;
    }
    if (const auto required = json.find("required"); required != json.end()) {
      ReadRequired(*required, pointer + "/required", &node);
    }
    if (node.max_length < node.min_length) Bad(Where(pointer), "maxLength is below minLength");
    if (node.max_items < node.min_items) Bad(Where(pointer), "maxItems is below minItems");
    return node;
  }

  void ReadKeyword(const std::string& key, const Json& value, const Json& json,
                   const std::string& pointer, SchemaNode* node) {
    const std::string at = pointer + "/" + key;
    if (std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end()) return;
    if (key == "$ref" || key == "anyOf" || key == "allOf") {
      RequireAlone(json, key, pointer);
      ReadAlternatives(key, value, at, node);
    } else if (key == "type") {
      node->types = ReadTypes(value, at);
    } else if (key == "enum" || key == "const") {
      RequireAlone(json, key, pointer);
    } else if (key == "minLength") {
      node->min_length = ReadCount(value, at);
    } else if (key == "maxLength") {
      node->max_length = ReadCount(value, at);
    } else if (key == "minItems") {
      node->min_items = ReadCount(value, at);
    } else if (key == "maxItems") {
      node->max_items = ReadCount(value, at);
    } else if (key == "items") {
      node->items = AtOrNothing(value, at);
    } else if (key == "prefixItems") {
      if (!value.is_array()) Bad(Where(at), "expected an array of schemas");
      for (size_t i = 0; i < value.size(); ++i) {
        node->first_items.push_back(At(value[i], at + "/" + std::to_string(i)));
      }
    } else if (key == "properties") {
      ReadProperties(value, at, node);
    } else if (key == "additionalProperties") {
      node->additional = AtOrNothing(value, at);
    } else if (key != "required") {
      throw Error(ErrorCode::kUnsupported,
                  Where(pointer) + ": the keyword \"" + key +
                      "\" is not supported; use type, properties, required, "
                      "additionalProperties, items, prefixItems, minItems, maxItems, minLength, "
                      "maxLength, enum, const, anyOf, $ref and $defs");
    }
  }

  // These would have to hold together with what stands beside them.
  void RequireAlone(const Json& json, const std::string& key, const std::string& pointer) const {
    const bool is_literal = key == "enum" || key == "const";
    for (const auto& [other, value] : json.items()) {
      if (other == key || (is_literal && other == "type")) continue;
      if (std::find(kAnnotations.begin(), kAnnotations.end(), other) != kAnnotations.end()) {
        continue;
      }
      throw Error(ErrorCode::kUnsupported, Where(pointer) + ": \"" + other + "\" beside \"" + key +
                                               "\" is not supported: write it into each of them");
    }
  }

  void ReadAlternatives(const std::string& key, const Json& value, const std::string& at,
                        SchemaNode* node) {
    if (key == "$ref") {
      node->any_of = {Resolve(value, at)};
      return;
    }
    if (!value.is_array() || value.empty()) Bad(Where(at), "expected schemas in an array");
    if (key == "allOf" && value.size() > 1) {
      throw Error(ErrorCode::kUnsupported, Where(at) + ": only one schema is supported in allOf");
    }
    for (size_t i = 0; i < value.size(); ++i) {
      node->any_of.push_back(At(value[i], at + "/" + std::to_string(i)));
    }
  }

  int Resolve(const Json& value, const std::string& at) {
    const std::string reference = value.is_string() ? value.get<std::string>() : "";
    if (!reference.starts_with("#")) {
      Bad(Where(at), "expected a reference inside of the schema, such as \"#/$defs/name\"");
    }
    const std::string pointer = reference.substr(1);
    try {
      const Json::json_pointer place(pointer);
      if (root_.contains(place)) return At(root_.at(place), pointer);
    } catch (const Json::exception&) {  // not a pointer
    }
    Bad(Where(at), "there is no such place in the schema");
  }

  int AtOrNothing(const Json& value, const std::string& at) {
    if (value.is_boolean()) {
      return value.get<bool>() ? SchemaNode::kAnyNode : SchemaNode::kNothing;
    }
    return At(value, at);
  }

  unsigned ReadTypes(const Json& value, const std::string& at) const {
    static const std::map<std::string, unsigned, std::less<>> kNames = {
        {"null", kJsonNull},     {"boolean", kJsonBoolean}, {"integer", kJsonInteger},
        {"number", kJsonNumber}, {"string", kJsonString},   {"array", kJsonArray},
        {"object", kJsonObject}};
    const auto one = [&](const Json& name) {
      const auto it = kNames.find(name.is_string() ? name.get<std::string>() : "");
      if (it == kNames.end()) {
        Bad(Where(at), "expected null, boolean, integer, number, string, array or object");
      }
      return it->second;
    };
    if (!value.is_array()) return one(value);
    unsigned types = 0;
    for (const Json& name : value) types |= one(name);
    if (types == 0) Bad(Where(at), "expected at least one type");
    return types;
  }

  int64_t ReadCount(const Json& value, const std::string& at) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0) {
      Bad(Where(at), "expected a whole number, at least 0");
    }
    return value.get<int64_t>();
  }

  // The values of enum or const that the type allows.
  std::vector<std::string> ReadLiterals(const Json& json, const std::string& pointer,
                                        unsigned types) const {
    const bool is_const = json.contains("const");
    const std::string at = pointer + (is_const ? "/const" : "/enum");
    const Json values = is_const ? Json::array({json["const"]}) : json["enum"];
    if (!values.is_array() || values.empty() || values.size() > kMaxLiterals) {
      Bad(Where(at), "expected an array of 1 to " + std::to_string(kMaxLiterals) + " values");
    }
    std::vector<std::string> literals;
    for (const Json& value : values) {
      if ((TypeOf(value) & types) == 0) continue;
      literals.push_back(DumpJson(value));
    }
    if (literals.empty()) Bad(Where(at), "none of the values has the type");
    return literals;
  }

  void ReadProperties(const Json& value, const std::string& at, SchemaNode* node) {
    if (!value.is_object()) Bad(Where(at), "expected an object of schemas");
    for (const auto& [name, schema] : value.items()) {
      node->properties.push_back(
          {name, SpellingOf(name), At(schema, at + "/" + EscapePointer(name)), false});
    }
  }

  void ReadRequired(const Json& value, const std::string& at, SchemaNode* node) const {
    if (!value.is_array()) Bad(Where(at), "expected an array of names");
    for (const Json& item : value) {
      if (!item.is_string()) Bad(Where(at), "expected an array of names");
      const std::string name = item.get<std::string>();
      auto property = std::find_if(node->properties.begin(), node->properties.end(),
                                   [&](const SchemaProperty& p) { return p.name == name; });
      if (property == node->properties.end()) {
        if (node->additional == SchemaNode::kNothing) {
          Bad(Where(at), "\"" + name + "\" is required, but is not one of the properties");
        }
        node->properties.push_back({name, SpellingOf(name), node->additional, false});
        property = node->properties.end() - 1;
      }
      property->required = true;
    }
  }

  static std::string EscapePointer(const std::string& name) {
    std::string escaped;
    for (const char c : name) {
      if (c == '~') escaped += "~0";
      if (c == '/') escaped += "~1";
      if (c != '~' && c != '/') escaped += c;
    }
    return escaped;
  }

  // ---- what cannot be ----

  bool CanBe(int node) const {
    return node != SchemaNode::kNothing && possible_[static_cast<size_t>(node)];
  }

  int ItemNode(const SchemaNode& node, int64_t position) const {
    const auto index = static_cast<size_t>(position);
    return index < node.first_items.size() ? node.first_items[index] : node.items;
  }

  // The number of items that an array can have at most.
  int64_t MostItems(const SchemaNode& node) const {
    const auto num_first = static_cast<int64_t>(node.first_items.size());
    for (int64_t i = 0; i < std::min(num_first, node.max_items); ++i) {
      if (!CanBe(ItemNode(node, i))) return i;
    }
    return CanBe(node.items) ? node.max_items : std::min(num_first, node.max_items);
  }

  unsigned PossibleTypes(const SchemaNode& node) const {
    unsigned types = node.types;
    if (MostItems(node) < node.min_items) types &= ~unsigned{kJsonArray};
    for (const SchemaProperty& property : node.properties) {
      if (property.required && !CanBe(property.node)) types &= ~unsigned{kJsonObject};
    }
    return types;
  }

  bool IsPossible(const SchemaNode& node) const {
    if (!node.any_of.empty()) {
      return std::any_of(node.any_of.begin(), node.any_of.end(),
                         [this](int one) { return CanBe(one); });
    }
    return !node.literals.empty() || PossibleTypes(node) != 0;
  }

  // A text must never run into a place from which no value can be completed.
  void RemoveImpossible() {
    possible_.assign(schema_.nodes.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < schema_.nodes.size(); ++i) {
        if (possible_[i] || !IsPossible(schema_.nodes[i])) continue;
        possible_[i] = changed = true;
      }
    }
    if (!CanBe(schema_.root)) Bad(path_, "no value can match this schema");
    for (SchemaNode& node : schema_.nodes) {
      std::erase_if(node.any_of, [this](int one) { return !CanBe(one); });
      node.types = PossibleTypes(node);
      node.max_items = std::max(node.min_items, MostItems(node));
      std::erase_if(node.properties,
                    [this](const SchemaProperty& property) { return !CanBe(property.node); });
      if (!CanBe(node.additional)) node.additional = SchemaNode::kNothing;
    }
  }

  const Json& root_;
  std::string path_;
  JsonSchema schema_;
  std::map<std::string, int> node_at_;  // by pointer
  std::vector<bool> possible_;
};

}  // namespace

std::shared_ptr<const JsonSchema> CompileSchema(const Json& schema, const std::string& path) {
  return Compiler(schema, path).Compile();
}

std::shared_ptr<const JsonSchema> AnyObjectSchema() {
  auto schema = std::make_shared<JsonSchema>();
  schema->nodes.resize(2);
  schema->nodes[1].types = kJsonObject;
  schema->root = 1;
  return schema;
}

}  // namespace deltafin
