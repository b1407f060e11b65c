// A JSON schema from its text, for tests.
#pragma once

#include <memory>
#include <string>

#include "deltafin/json.h"
#include "server/json_schema.h"

namespace deltafin {

inline std::shared_ptr<const JsonSchema> Schema(const std::string& text) {
  return CompileSchema(ParseJson(text, "schema"), "schema");
}

}  // namespace deltafin
