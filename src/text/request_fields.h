// Access to the fields of a JSON request, with errors that name the field.
#pragma once

#include <string>
#include <string_view>

#include "deltafin/json.h"

namespace deltafin {

// Throws Error(kInvalidArgument): "`path`: expected `expected`, got ...".
[[noreturn]] void BadField(const std::string& path, std::string_view expected, const Json* got);

// "messages" and "role" make "messages.role".
std::string FieldPath(const std::string& parent, std::string_view key);

// The member `key` of an object; nullptr when it is absent or null.
const Json* FindField(const Json& object, std::string_view key);

// The same for a member that must be a string; "" when absent or null. `path`: of the object.
std::string StringField(const Json& object, std::string_view key, const std::string& path);

// The same for a member that must be an array; nullptr when absent or null.
const Json* ArrayField(const Json& object, std::string_view key, const std::string& path);

// Whether Python's str.strip() leaves nothing.
bool IsBlank(std::string_view text);

}  // namespace deltafin
