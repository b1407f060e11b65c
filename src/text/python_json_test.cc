#include "text/python_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "deltafin/error.h"

namespace deltafin {
namespace {

// Expected: printed by CPython 3.11, json.dumps(json.loads(text), ensure_ascii=False), and the same
// with sort_keys=True, separators=(",", ":").
TEST(PythonJsonTest, WritesWhatPythonWrites) {
  struct Case {
    std::string text, with_defaults, sorted_compact;
  };
  const Case cases[] = {
      {"1", "1", "1"},
      {"1.0", "1.0", "1.0"},
      {"1e5", "100000.0", "100000.0"},
      {"1e22", "1e+22", "1e+22"},
      {"1e16", "1e+16", "1e+16"},
      {"1e15", "1000000000000000.0", "1000000000000000.0"},
      {"123456789012345678", "123456789012345678", "123456789012345678"},
      {"123456789012345678901234567890", "123456789012345678901234567890",
       "123456789012345678901234567890"},
      {"-98765432109876543210987", "-98765432109876543210987", "-98765432109876543210987"},
      {"0.1", "0.1", "0.1"},
      {"1e-4", "0.0001", "0.0001"},
      {"1e-5", "1e-05", "1e-05"},
      {"0.00001234", "1.234e-05", "1.234e-05"},
      {"1.5e300", "1.5e+300", "1.5e+300"},
      {"-0", "0", "0"},
      {"-0.0", "-0.0", "-0.0"},
      {"1E3", "1000.0", "1000.0"},
      {"2.50", "2.5", "2.5"},
      {"5e-324", "5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e+308"},
      {"9007199254740993.0", "9007199254740992.0", "9007199254740992.0"},
      {"123456789.125", "123456789.125", "123456789.125"},
      {"18446744073709551616", "18446744073709551616", "18446744073709551616"},
      {"[1, 2,[ ]]", "[1, 2, []]", "[1,2,[]]"},
      {"{\"b\":[1,true,null],\"a\":\"x\"}", "{\"b\": [1, true, null], \"a\": \"x\"}",
       "{\"a\":\"x\",\"b\":[1,true,null]}"},
      {"{}", "{}", "{}"},
      {"\"\\u00e9\\u4f60/\\/\\ud83d\\ude00\"", "\"\303\251\344\275\240//\360\237\230\200\"",
       "\"\303\251\344\275\240//\360\237\230\200\""},
      {"\"\\u0000\\u001f\\u007f\\b\\f\\n\\r\\t\\\"\\\\\"",
       "\"\\u0000\\u001f\177\\b\\f\\n\\r\\t\\\"\\\\\"",
       "\"\\u0000\\u001f\177\\b\\f\\n\\r\\t\\\"\\\\\""},
      {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}", "{\"a\":3,\"b\":2}"},
      {"false", "false", "false"},
      {"{\"Z\":{\"d\":1,\"c\":2},\"A\":[{\"y\":1,\"x\":2}],\"a\":0,\"\\u00e9\":1,\"\\uffff\":2,"
       "\"\\ud800\\udc00\":3}",
       "{\"Z\": {\"d\": 1, \"c\": 2}, \"A\": [{\"y\": 1, \"x\": 2}], \"a\": 0, \"\303\251\": 1, "
       "\"\357\277\277\": 2, \"\360\220\200\200\": 3}",
       "{\"A\":[{\"x\":2,\"y\":1}],\"Z\":{\"c\":2,\"d\":1},\"a\":0,\"\303\251\":1,\"\357\277\277\":"
       "2,\"\360\220\200\200\":3}"},
  };
  for (const Case& c : cases) {
    const Json value = ParsePythonJson(c.text, "test");
    EXPECT_EQ(DumpPython(value, JsonStyle::kDefault), c.with_defaults) << c.text;
    EXPECT_EQ(DumpPython(value, JsonStyle::kSortedCompact), c.sorted_compact) << c.text;
  }
}

TEST(PythonJsonTest, FloatsReadBackAsTheSameNumber) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    // Any bits at first; then short decimals, which people write.
    double value = static_cast<double>(static_cast<int64_t>(random() % 2000000) - 1000000) / 1000;
    if (i % 2 == 0) {
      const uint64_t bits = random();
      std::memcpy(&value, &bits, sizeof(value));
      if (!std::isfinite(value)) continue;
    }
    const std::string text = DumpPython(Json(value), JsonStyle::kDefault);
    EXPECT_EQ(ParsePythonJson(text, "test"), Json(value)) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text << " reads as an integer";
  }
}

}  // namespace
}  // namespace deltafin
