#include "deltafin/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "io/file.h"
#include "shared_data.h"

namespace deltafin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ParseMessage(std::string_view text, int max_depth = 64) {
  try {
    ParseJson(text, "doc.json", max_depth);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(ParseJson, KeepsValuesAndTheOrderOfKeys) {
  const Json json = ParseJson(R"( {"z": [1, -2, 2.5, true, null], "a": {"s": "\u00e4\ud83d\ude00"},
    "m": 18446744073709551615} )",
                              "doc");
  EXPECT_EQ(json.dump(), R"({"z":[1,-2,2.5,true,null],"a":{"s":"ä😀"},"m":18446744073709551615})");
  EXPECT_TRUE(json["z"][0].is_number_unsigned());
  EXPECT_TRUE(json["z"][1].is_number_integer());
  EXPECT_TRUE(json["z"][2].is_number_float());
}

TEST(ParseJson, Scalars) {
  EXPECT_EQ(ParseJson("7", "doc"), Json(7));
  EXPECT_EQ(ParseJson("\"x\"", "doc"), Json("x"));
  EXPECT_TRUE(ParseJson(" null ", "doc").is_null());
}

// The same result as nlohmann's own builder.
TEST(ParseJson, RealConfiguration) {
  const std::string text =
      ReadWholeFile(RealFileSystem(), DataPath("official/model/config.json"), 1 << 20);
  EXPECT_EQ(ParseJson(text, "config.json").dump(), Json::parse(text).dump());
}

TEST(ParseJson, LastDuplicateWinsInTheFirstPlace) {
  EXPECT_EQ(ParseJson(R"({"a":1,"b":2,"a":{"x":1},"c":3,"b":4,"a":5})", "doc").dump(),
            R"({"a":5,"b":4,"c":3})");
}

TEST(ParseJson, ErrorsNameDocumentLineAndColumn) {
  EXPECT_THAT(ParseMessage("{\n  \"a\": 1,\n  \"b\" 2\n}"),
              AllOf(HasSubstr("doc.json: not valid JSON at line 3, column 7"),
                    HasSubstr("expected ':'"), Not(HasSubstr("json.exception"))));
  EXPECT_THAT(ParseMessage(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(ParseMessage("{} x"), HasSubstr("line 1, column 4"));
  EXPECT_THAT(ParseMessage("[1e999]"), HasSubstr("number overflow"));
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const std::string_view text :
       {"{", "[1,]", "{\"a\":1,}", "{'a':1}", "// c\n1", "01", "+1", "NaN", "\"\t\"", "\"\\x\"",
        "tru", "[1 2]", "{\"a\"}", "{1:2}", "]", "\"\\ud800\""}) {
    EXPECT_THAT(ParseMessage(text), HasSubstr("line 1")) << text;
  }
}

TEST(ParseJson, RefusesInvalidUtf8AndKeepsMessagesPrintable) {
  for (const std::string_view text : {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
                                      "\"\xf4\x90\x80\x80\"", "\"\xe4\"", "\xff"}) {
    for (const char c : ParseMessage(text)) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
  }
}

TEST(ParseJson, RefusesZeroBytes) {
  EXPECT_THAT(ParseMessage(std::string_view("{}\n\0{\"a\":1}", 11)),
              HasSubstr("line 2, column 1: zero byte"));
}

TEST(ParseJson, MessagesStayShort) {
  EXPECT_LT(ParseMessage("\"" + std::string(1 << 20, 'x')).size(), 500u);
}

TEST(ParseJson, DepthLimit) {
  EXPECT_EQ(ParseJson("[[{\"a\":[0]}]]", "doc", 4).dump(), "[[{\"a\":[0]}]]");
  EXPECT_THAT(ParseMessage("[[{\"a\":[0]}]]", 3),
              AllOf(HasSubstr("doc.json"), HasSubstr("more than 3 levels")));
  EXPECT_EQ(ParseJson("1", "doc", 0), Json(1));
  ParseMessage("[]", 0);
  // Neither parsing nor freeing may use the stack per level.
  ParseMessage(std::string(1 << 20, '['));
  const int depth = 1 << 18;
  ParseJson(std::string(depth, '[') + std::string(depth, ']'), "doc", depth);
}

// A quadratic lookup of keys takes minutes here.
TEST(ParseJson, ManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += format("\"key{}\":{},", i, i);
  text += "\"last\":1}";
  EXPECT_EQ(ParseJson(text, "doc").size(), 300001u);
}

TEST(JsonTest, PrintsWhatIsNotUtf8) {
  EXPECT_EQ(DumpJson({{"dir", "/m\xff/\u00e4"}}), "{\"dir\":\"/m\xef\xbf\xbd/\u00e4\"}");
}

TEST(JsonTest, KeepsTheDigitsOfBigIntegersOnRequest) {
  const std::string text = R"([123456789012345678901234567890, 18446744073709551615, 1e30])";
  const Json rounded = ParseJson(text, "request");
  EXPECT_EQ(rounded[0], 123456789012345678901234567890.0);
  const Json verbatim = ParseJson(text, "request", 64, BigIntegers::kVerbatim);
  ASSERT_TRUE(verbatim[0].is_binary());
  const auto& digits = verbatim[0].get_binary();
  EXPECT_EQ(std::string(digits.begin(), digits.end()), "123456789012345678901234567890");
  EXPECT_EQ(verbatim[1], 18446744073709551615u);
  EXPECT_EQ(verbatim[2], 1e30);
}

}  // namespace
}  // namespace deltafin
