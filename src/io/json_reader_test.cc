#include "io/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>

#include "deltafin/json.h"

namespace deltafin {
namespace {

using ::testing::HasSubstr;

// Hands out `text` in pieces of `step` bytes, each in memory of its own, so that a read beyond a
// piece is seen by AddressSanitizer.
JsonReader InPieces(std::string_view text, size_t step) {
  auto at = std::make_shared<size_t>(0);
  auto piece = std::make_shared<std::unique_ptr<std::string>>();
  return JsonReader(
      [=]() -> std::string_view {
        *piece = std::make_unique<std::string>(text.substr(*at, step));
        *at += (*piece)->size();
        return **piece;
      },
      "doc");
}

std::optional<std::string> ErrorOfSkipping(JsonReader reader) {
  try {
    reader.SkipValue();
    reader.ExpectEnd();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
    return e.what();
  }
  return std::nullopt;
}

std::string ErrorOfReading(std::string_view text, void (*read)(JsonReader&)) {
  JsonReader reader(text, "doc");
  try {
    read(reader);
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(JsonReader, WalksADocument) {
  const std::string_view text =
      " {\"a\": {\"s\": \"x\\u00e4\\ud83d\\ude00\\n\"}, \"list\": [1, 18446744073709551615, 0],"
      " \"empty\": [], \"o\":{}} ";
  for (const size_t step : {1, 2, 3, 7, 1000}) {
    JsonReader reader = InPieces(text, step);
    std::string key, value;
    std::vector<uint64_t> numbers;
    reader.BeginObject();
    ASSERT_TRUE(reader.NextKey(key));
    EXPECT_EQ(key, "a");
    reader.BeginObject();
    ASSERT_TRUE(reader.NextKey(key));
    reader.ReadString(value);
    EXPECT_EQ(value, "xä😀\n");
    EXPECT_FALSE(reader.NextKey(key));
    ASSERT_TRUE(reader.NextKey(key));
    EXPECT_EQ(key, "list");
    reader.BeginArray();
    while (reader.NextElement()) numbers.push_back(reader.ReadUint());
    EXPECT_THAT(numbers, ::testing::ElementsAre(1, UINT64_MAX, 0));
    ASSERT_TRUE(reader.NextKey(key));
    reader.BeginArray();
    EXPECT_FALSE(reader.NextElement());
    ASSERT_TRUE(reader.NextKey(key));
    reader.SkipValue();
    EXPECT_FALSE(reader.NextKey(key));
    reader.ExpectEnd();
    EXPECT_EQ(reader.position(), text.size());
  }
}

TEST(JsonReader, ErrorsNameDocumentSubjectAndPlace) {
  JsonReader reader("{\n \"a\"\n  : x}", "doc");
  reader.set_subject([] { return "tensor \"t\""; });
  std::string key;
  reader.BeginObject();
  reader.NextKey(key);
  try {
    reader.ReadUint();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "doc: tensor \"t\": expected a non-negative integer, got \"x\" (line 3, column 5)");
  }
}

TEST(JsonReader, UintIsStrict) {
  const auto read = [](JsonReader& r) { r.ReadUint(); };
  EXPECT_THAT(ErrorOfReading("-1", read), HasSubstr("got \"-\""));
  EXPECT_THAT(ErrorOfReading("1.0", read), HasSubstr("fraction"));
  EXPECT_THAT(ErrorOfReading("1e3", read), HasSubstr("exponent"));
  EXPECT_THAT(ErrorOfReading("01", read), HasSubstr("leading zero"));
  EXPECT_THAT(ErrorOfReading("18446744073709551616", read), HasSubstr("2^64"));
  EXPECT_THAT(ErrorOfReading("99999999999999999999999999", read), HasSubstr("2^64"));
  EXPECT_THAT(ErrorOfReading("\"1\"", read), HasSubstr("integer"));
  EXPECT_THAT(ErrorOfReading("", read), HasSubstr("end of the text"));
}

TEST(JsonReader, RefusesRepeatedKeysWhereItSkips) {
  EXPECT_THAT(ErrorOfSkipping(JsonReader(R"({"x":[{"a":1,"b":2,"\u0061":3}]})", "doc")).value(),
              HasSubstr("key \"a\" stands twice"));
}

TEST(JsonReader, DepthIsLimited) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(ErrorOfSkipping(JsonReader(nested(64), "doc")), std::nullopt);
  EXPECT_THAT(ErrorOfSkipping(JsonReader(nested(65), "doc")).value(), HasSubstr("64 levels"));
  EXPECT_THAT(ErrorOfSkipping(JsonReader(nested(1000000), "doc")).value(), HasSubstr("64 levels"));
}

// As another parser sees it; it stops at numbers too large for a double, which says nothing.
std::optional<bool> IsJson(std::string_view text) {
  try {
    ParseJson(text, "doc");
  } catch (const Error& e) {
    if (std::string_view(e.what()).find("number overflow") != std::string_view::npos) return {};
    return false;
  }
  return true;
}

TEST(JsonReader, AgreesWithAnotherParserOnMutatedDocuments) {
  const std::vector<std::string> seeds = {
      R"({"a": [1, -2.5e+3, 0, true, false, null], "b\u00e9\ud83d\ude00\"\\": {"c": {}, "d": []}})",
      "[\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\", \"\\/\\b\\f\\n\\r\\t\", 1e5, -0, 10.25]",
      " \t\r\n {\"k\" : \"v\" , \"l\":[ ] } \n"};
  using std::string_view_literals::operator""sv;
  static constexpr std::string_view kBytes =
      "{}[]\",:\\u0d8e+-.x1 \n\t\xc3\xa4\xed\xa0\xf4\x90\xff\x01\0"sv;
  std::mt19937 random(1);
  int num_valid = 0;
  for (int trial = 0; trial < 200000; ++trial) {
    std::string text = seeds[random() % seeds.size()];
    const int num_changes = 1 + static_cast<int>(random() % 3);
    for (int change = 0; change < num_changes && !text.empty(); ++change) {
      const size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 4) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + random() % 4);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 8));
          break;
      }
    }
    const auto error = ErrorOfSkipping(InPieces(text, 1 + random() % 9));
    if (error && error->find("stands twice") != std::string::npos) continue;  // says nothing
    if (!error) ++num_valid;
    EXPECT_EQ(!error, IsJson(text).value_or(!error)) << text << "\n" << error.value_or("accepted");
    if (HasFailure()) return;
  }
  EXPECT_GT(num_valid, 10000);  // else the mutations are too coarse to say anything
}

}  // namespace
}  // namespace deltafin
