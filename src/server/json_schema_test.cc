#include "server/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deltafin/error.h"

namespace deltafin {
namespace {

using testing::HasSubstr;

std::string FailureOf(const std::string& schema, ErrorCode code) {
  try {
    (void)CompileSchema(ParseJson(schema, "schema"), "schema");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << schema;
    return error.what();
  }
  ADD_FAILURE() << schema << " was taken";
  return {};
}

TEST(JsonSchemaTest, KeywordsOutsideTheSubsetAreNamed) {
  for (const char* keyword : {"pattern", "minimum", "oneOf", "not", "if", "patternProperties",
                              "uniqueItems", "multipleOf", "dependentRequired", "anything"}) {
    const std::string message =
        FailureOf("{\"properties\": {\"a\": {\"" + std::string(keyword) + "\": 1}}}",
                  ErrorCode::kUnsupported);
    EXPECT_THAT(message, HasSubstr("schema/properties/a: the keyword \"" + std::string(keyword)));
  }
  EXPECT_THAT(FailureOf(R"({"anyOf": [{}], "type": "object"})", ErrorCode::kUnsupported),
              HasSubstr("\"type\" beside \"anyOf\""));
  EXPECT_THAT(FailureOf(R"({"enum": ["a"], "minLength": 2})", ErrorCode::kUnsupported),
              HasSubstr("\"minLength\" beside \"enum\""));
  EXPECT_THAT(FailureOf(R"({"allOf": [{}, {}]})", ErrorCode::kUnsupported), HasSubstr("allOf"));
}

TEST(JsonSchemaTest, WhatIsNoSchemaIsRefused) {
  for (const char* schema : {"1",
                             "[]",
                             "false",
                             R"({"type": "text"})",
                             R"({"type": []})",
                             R"({"type": 1})",
                             R"({"enum": []})",
                             R"({"enum": 1})",
                             R"({"properties": []})",
                             R"({"required": ["a", 1]})",
                             R"({"minLength": -1})",
                             R"({"minItems": 1.5})",
                             R"({"minItems": 2, "maxItems": 1})",
                             R"({"minLength": 2, "maxLength": 1})",
                             R"({"$ref": "#/$defs/none"})",
                             R"({"$ref": 1})",
                             R"({"$ref": "http://example.com/schema"})",
                             R"({"type": "string", "enum": [1]})",
                             R"({"required": ["a"], "additionalProperties": false})",
                             R"({"anyOf": []})",
                             R"({"$ref": "#/a b~"})"}) {
    EXPECT_THAT(FailureOf(schema, ErrorCode::kInvalidArgument), HasSubstr("schema")) << schema;
  }
}

TEST(JsonSchemaTest, SchemasThatNoValueCanMatchAreRefused) {
  for (const char* schema : {R"({"$ref": "#"})", R"({"anyOf": [{"$ref": "#"}]})",
                             R"({"type": "object", "properties": {"a": {"$ref": "#"}},
                                 "required": ["a"]})",
                             R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"}) {
    EXPECT_THAT(FailureOf(schema, ErrorCode::kInvalidArgument), HasSubstr("no value can match"))
        << schema;
  }
}

TEST(JsonSchemaTest, AnnotationsMeanNothing) {
  EXPECT_NO_THROW(
      CompileSchema(ParseJson(R"({"title": "t", "description": "d", "default": 1, "format": "date",
                    "$schema": "x", "type": "string"})",
                              "schema"),
                    "schema"));
  EXPECT_NO_THROW(CompileSchema(
      ParseJson(R"({"$ref": "#/$defs/a", "description": "d", "$defs": {"a": {"allOf": [true]}}})",
                "schema"),
      "schema"));
}

}  // namespace
}  // namespace deltafin
