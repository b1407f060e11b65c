#include "server/json_acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/schema_test_util.h"

namespace deltafin {
namespace {

enum class Verdict : uint8_t { kNo, kBegin, kWhole };

Verdict Judge(const std::shared_ptr<const JsonSchema>& schema, const std::string& text) {
  JsonAcceptor acceptor(schema);
  for (const char c : text) {
    if (!acceptor.Push(c)) return Verdict::kNo;
  }
  return acceptor.complete() ? Verdict::kWhole : Verdict::kBegin;
}

void ExpectWhole(const std::string& schema, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_EQ(Judge(Schema(schema), text), Verdict::kWhole) << schema << " " << text;
  }
}
void ExpectNot(const std::string& schema, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_NE(Judge(Schema(schema), text), Verdict::kWhole) << schema << " " << text;
  }
}

TEST(JsonAcceptorTest, AnyValue) {
  ExpectWhole("{}", {"null", "true", "false", "0", "-0.5", "12e-3", "1E+5", "\"\"", "[]", "{}",
                     R"([1, 2, {"a": [null]}])", "{\"a\": {}, \"b\" : \"\\u00e9\\n\"}",
                     "\"\\ud83d\\ude00\"", "\"\xc3\xa9\xf0\x9f\x98\x80\""});
  ExpectNot("{}", {"nul",         "01",          "1.",
                   "1e",          "-",           "+1",
                   ".5",          "tru",         "[1,]",
                   "[1",          "{\"a\"}",     "{\"a\":}",
                   "{,}",         "{\"a\":1,}",  "\"",
                   "\"\\x\"",     "\"\\u12g4\"", "\"\n\"",
                   "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\"",
                   "\"\xff\"",    "\"\xc3\"",    "\"\xed\xa0\x80\"",
                   "1 2",         "[1] x",       " 1",
                   "{'a':1}",     "NaN",         R"({"a": 1, "a": 2})"});
}

TEST(JsonAcceptorTest, ObjectsOfASchema) {
  const std::string schema = R"({"type": "object", "properties": {
      "name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array",
      "items": {"enum": ["a", "b"]}, "maxItems": 2}},
      "required": ["name", "age"], "additionalProperties": false})";
  ExpectWhole(schema, {R"({"name": "x", "age": 3})", R"({"age":3,"name":""})",
                       R"({"age": 3, "tags": ["a", "b"], "name": ""})",
                       "{\n  \"name\": \"x\",\n  \"age\": -1\n}"});
  ExpectNot(schema, {"{}", R"({"name": "x"})", R"({"name": "x", "age": 3.5})",
                     R"({"name": "x", "age": 3, "more": 1})", R"({"name": 1, "age": 3})",
                     R"({"name": "x", "age": 3, "tags": ["c"]})",
                     R"({"name": "x", "age": 3, "tags": ["a", "a", "a"]})", "[]", "null",
                     R"({"name": "x", "name": "y", "age": 3})", R"({"n\u0061me": "x", "age": 3})",
                     R"({"name": "x", "age": 1e2})"});
}

TEST(JsonAcceptorTest, OtherPropertiesMayBeThere) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "null"}},
          "additionalProperties": {"type": "boolean"}})";
  ExpectWhole(schema, {"{}", R"({"a": null, "b": true, "ab": false, "": true})"});
  ExpectNot(schema, {R"({"a": true})", R"({"b": null})", R"({"b": true, "b": true})"});
}

TEST(JsonAcceptorTest, Alternatives) {
  const std::string schema = R"({"anyOf": [{"type": "object", "properties":
      {"kind": {"const": "dog"}, "bark": {"type": "boolean"}}, "required": ["kind", "bark"],
       "additionalProperties": false}, {"type": "object", "properties": {"kind": {"const": "cat"}},
       "required": ["kind"], "additionalProperties": false}, {"type": ["string", "null"]}]})";
  ExpectWhole(schema, {R"({"kind": "dog", "bark": true})", R"({"bark": true, "kind": "dog"})",
                       R"({"kind": "cat"})", "\"x\"", "null"});
  ExpectNot(schema, {R"({"kind": "cat", "bark": true})", R"({"kind": "dog"})", "1", "{}"});
}

TEST(JsonAcceptorTest, RecursiveSchemas) {
  const std::string schema = R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
      "properties": {"value": {"type": "number"}, "children": {"type": "array",
      "items": {"$ref": "#/$defs/tree"}}}, "required": ["value"],
      "additionalProperties": false}}})";
  ExpectWhole(schema, {R"({"value": 1, "children": [{"value": 2, "children": []}]})"});
  ExpectNot(schema, {R"({"value": 1, "children": [{}]})"});
}

TEST(JsonAcceptorTest, LengthsAndItems) {
  ExpectWhole(R"({"type": "string", "minLength": 2, "maxLength": 3})",
              {"\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", R"("\n\u00e9")", R"("\ud83d\ude00x")"});
  ExpectNot(R"({"type": "string", "minLength": 2, "maxLength": 3})", {"\"a\"", "\"abcd\""});
  const std::string tuple = R"({"type": "array", "prefixItems": [{"type": "string"}, {"type":
      "integer"}], "items": false, "minItems": 1})";
  ExpectWhole(tuple, {"[\"a\"]", "[\"a\", 1]"});
  ExpectNot(tuple, {"[]", "[1]", "[\"a\", 1, 2]", "[\"a\", \"b\"]"});
}

TEST(JsonAcceptorTest, ValuesThatAreGiven) {
  const std::string schema = R"({"enum": ["red", "reddish", 1, 12, null, {"a": [1]}]})";
  ExpectWhole(schema, {"\"red\"", "\"reddish\"", "1", "12", "null", R"({"a":[1]})"});
  ExpectNot(schema, {"\"re\"", "\"blue\"", "2", "\"red", "{}"});
}

TEST(JsonAcceptorTest, EndlessFillingIsRefused) {
  const auto any = Schema("{}");
  EXPECT_EQ(Judge(any, "[" + std::string(2000, ' ')), Verdict::kNo);
  EXPECT_EQ(Judge(any, std::string(2000, '1')), Verdict::kNo);
  EXPECT_EQ(Judge(any, std::string(2000, '[')), Verdict::kNo);
}

// Completes the value by the first of a few pieces that is accepted, again and again.
std::string Complete(JsonAcceptor acceptor) {
  const std::vector<std::string> pieces = {"\"ab\":\"x\"",
                                           ",\"ab\":\"x\"",
                                           "\"q\\\"\\n\":\"abc\"",
                                           ",\"q\\\"\\n\":\"abc\"",
                                           "\"z\":0",
                                           ",\"z\":0",
                                           "\"next\":null",
                                           "\"",
                                           "}",
                                           "]",
                                           ":",
                                           "null",
                                           "0",
                                           ",0",
                                           "a",
                                           "\\udc00",
                                           "udc00",
                                           "dc00",
                                           "c00",
                                           "x",
                                           "q",
                                           "y",
                                           "b",
                                           "n",
                                           "\\n",
                                           "ull",
                                           "ll",
                                           "l",
                                           "rue",
                                           "ue",
                                           "e",
                                           "alse",
                                           "lse",
                                           "se",
                                           "\x80",
                                           "\x90",
                                           "\xa0",
                                           "ext\"",
                                           "xt\"",
                                           "t\"",
                                           "z"};
  std::string text;
  for (int step = 0; step < 400 && !acceptor.complete(); ++step) {
    bool goes_on = false;
    for (size_t i = 0; i < pieces.size() && !goes_on; ++i) {
      JsonAcceptor next = acceptor;
      goes_on =
          std::all_of(pieces[i].begin(), pieces[i].end(), [&](char c) { return next.Push(c); });
      if (!goes_on) continue;
      acceptor = next;
      text += pieces[i];
    }
    if (!goes_on) break;
  }
  return acceptor.complete() ? text : text + " (no end)";
}

// Walks at random through what is allowed: from everywhere a value can be completed, and the result
// is JSON.
void Walk(const std::string& text, unsigned seed) {
  const auto schema = Schema(text);
  std::mt19937 random(seed);
  JsonAcceptor acceptor(schema);
  std::string written;
  const size_t steps = random() % 120;
  for (size_t step = 0; step < steps; ++step) {
    std::vector<char> allowed;
    for (int c = 0; c < 256; ++c) {
      JsonAcceptor next = acceptor;
      if (next.Push(static_cast<char>(c))) allowed.push_back(static_cast<char>(c));
    }
    if (allowed.empty()) {
      ASSERT_TRUE(acceptor.complete()) << text << " after " << written;
      break;
    }
    const char choice = allowed[random() % allowed.size()];
    ASSERT_TRUE(acceptor.Push(choice));
    written += choice;
  }
  const std::string rest = Complete(acceptor);
  ASSERT_FALSE(rest.ends_with("(no end)")) << text << " after " << written << " then " << rest;
  EXPECT_NO_THROW(ParseJson(written + rest, "walk", 80)) << written << rest;
}

TEST(JsonAcceptorTest, FromEverywhereAValueCanBeCompleted) {
  const std::vector<std::string> schemas = {
      "{}",
      R"({"type": "object"})",
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"enum": ["x", "xy"]},
          "q\"\n": {"type": "string", "minLength": 3}}, "required": ["ab", "q\"\n", "z"]})",
      R"({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "number"},
          {"type": "array", "items": {"type": "null"}}]}, "minItems": 3, "maxItems": 5})",
      R"({"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"},
          {"type": "null"}]}}, "required": ["next"], "additionalProperties": false}},
          "$ref": "#/$defs/n"})",
  };
  for (const std::string& schema : schemas) {
    for (unsigned seed = 0; seed < 20; ++seed) Walk(schema, seed);
  }
}

TEST(JsonAcceptorTest, AlternativesThatLookAlikeStayFew) {
  // Without merging, every item would double the number of readings.
  const auto schema = Schema(R"({"type": "array", "items": {"anyOf": [{"type": "integer"},
      {"type": "number"}, {"type": "integer"}]}})");
  std::string text = "[1";
  for (int i = 0; i < 500; ++i) text += ", 1";
  EXPECT_EQ(Judge(schema, text + "]"), Verdict::kWhole);
}

TEST(JsonAcceptorTest, AlternativesMayNameEachOther) {
  std::string schema = "{\"$defs\": {";
  for (int i = 0; i < 60; ++i) {
    const std::string next = "{\"$ref\": \"#/$defs/d" + std::to_string((i + 1) % 60) + "\"}";
    schema += "\"d" + std::to_string(i) + "\": {\"anyOf\": [" + next + ", " + next +
              ", {\"type\": \"null\"}]},";
  }
  schema.back() = '}';
  ExpectWhole(schema + ", \"$ref\": \"#/$defs/d0\"}", {"null"});
}

// A schema that names itself has no bottom.
TEST(JsonAcceptorTest, DepthAndLengthTakeNoStack) {
  const auto arrays = Schema(R"({"type": "array", "items": {"$ref": "#"}})");
  EXPECT_EQ(Judge(arrays, std::string(300'000, '[')), Verdict::kBegin);
  EXPECT_EQ(Judge(arrays, std::string(300'000, '[') + std::string(300'000, ']')), Verdict::kWhole);
}

TEST(JsonAcceptorTest, CopiesAreIndependent) {
  JsonAcceptor one(Schema(R"({"enum": ["ab", "ac"]})"));
  ASSERT_TRUE(one.Push('"') && one.Push('a'));
  JsonAcceptor two = one;
  EXPECT_TRUE(one.Push('b'));
  EXPECT_TRUE(two.Push('c'));
  EXPECT_FALSE(one.Push('c'));
}

}  // namespace
}  // namespace deltafin
