#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>

#include "base/format.h"
#include "io/testing_file_system.h"
#include "shared_data.h"

namespace deltafin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Container(std::string_view header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return file + std::string(header) + std::string(data_bytes, 'd');
}

SafetensorsHeader ParseFile(const std::string& file) {
  return SafetensorsHeader::Parse(file, file.size(), "x.safetensors");
}

std::string HeaderMessage(const std::string& file, ErrorCode code = ErrorCode::kCorrupt) {
  try {
    ParseFile(file);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "accepted";
}

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("e":{"dtype":"U8","shape":[0,7],"data_offsets":[28,28]}}  )";
constexpr size_t kDataBytes = 28;

TEST(Safetensors, ReadsAHeader) {
  const SafetensorsHeader header = ParseFile(Container(kHeader, kDataBytes));
  ASSERT_EQ(header.size(), 3u);
  EXPECT_EQ(header.data_begin(), 8 + kHeader.size());
  EXPECT_EQ(header.name(0), "a");
  EXPECT_EQ(header.name(1), "b");
  EXPECT_EQ(header.name(2), "e");
  const TensorEntry& b = *header.Find("b");
  EXPECT_EQ(&b, &header.entry(1));
  EXPECT_EQ(b.offset, header.data_begin() + 4);
  EXPECT_EQ(b.bytes, 24u);
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_EQ(ShapeName(b.shape), "[2,3]");
  EXPECT_EQ(header.Find("e")->bytes, 0u);
  for (const std::string_view absent : {"", "A", "aa", "c", "f", "__metadata__"}) {
    EXPECT_EQ(header.Find(absent), nullptr) << absent;
  }
}

TEST(Safetensors, NoTensors) {
  EXPECT_EQ(ParseFile(Container("{}", 0)).size(), 0u);
  EXPECT_THAT(HeaderMessage(Container("{}", 1)),
              HasSubstr("end at byte 10, expected the size of the file, 11"));
}

TEST(Safetensors, EveryDType) {
  static constexpr std::pair<std::string_view, int> kAll[] = {
      {"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"I16", 2},    {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},    {"F64", 8}, {"I64", 8},
      {"U64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (size_t i = 0; i < std::size(kAll); ++i) {
    const auto [name, bytes] = kAll[i];
    const SafetensorsHeader header = ParseFile(Container(
        format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name, 3 * bytes),
        static_cast<size_t>(3 * bytes)));
    EXPECT_EQ(header.entry(0).dtype, static_cast<DType>(i));
    EXPECT_EQ(DTypeName(header.entry(0).dtype), name);
    EXPECT_EQ(DTypeBytes(header.entry(0).dtype), bytes);
  }
}

TEST(Safetensors, RanksAboveFourMatchNothing) {
  const SafetensorsHeader header =
      ParseFile(Container(R"({"five":{"dtype":"U8","shape":[1,2,1,2,1],"data_offsets":[0,4]},)"
                          R"("four":{"dtype":"U8","shape":[1,2,1,2],"data_offsets":[4,8]},)"
                          R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})",
                          9));
  EXPECT_EQ(header.Find("five")->shape.rank, -1);
  EXPECT_EQ(header.Find("five")->bytes, 4u);
  EXPECT_EQ(ShapeName(header.Find("five")->shape), "[more than 4 dimensions]");
  EXPECT_EQ(ShapeName(header.Find("four")->shape), "[1,2,1,2]");
  EXPECT_EQ(header.Find("scalar")->shape.rank, 0);
  EXPECT_EQ(ShapeName(header.Find("scalar")->shape), "[]");
}

// One rule broken at a time: `from` becomes `to` in the header above.
struct Damage {
  const char* rule;
  std::string_view from;
  std::string_view to;
  const char* message;
};

TEST(Safetensors, RefusesEveryBrokenRule) {
  const Damage kDamages[] = {
      {"not JSON", "{\"__meta", "[\"__meta", "begins with '{'"},
      {"leading space", "{\"__meta", " {\"__meta", "begins with '{'"},
      {"missing comma", "]},\"a\"", "]}\"a\"", "expected ','"},
      {"trailing comma", "28]}}", "28]},}", "expected '\"'"},
      {"garbage after the object", "}}  ", "}} x", "nothing but spaces"},
      {"newline after the object", "}}  ", "}}\n ", "nothing but spaces"},
      {"zero after the object", "}}  ", std::string_view("}}\0 ", 4), "nothing but spaces"},
      {"second object", "}}  ", "}}{}", "nothing but spaces"},
      {"tensor is no object", "\"e\":{", "\"e\":7,\"f\":{", "tensor \"e\": expected an object"},
      {"metadata is no object", ":{\"format\":\"pt\"}", ":1", "expected an object"},
      {"metadata value is no string", "\"pt\"", "1", "string"},
      {"metadata twice", "{\"__m", "{\"__metadata__\":{},\"__m", "\"__metadata__\" stands twice"},
      {"metadata key twice", "\"pt\"", "\"pt\",\"format\":\"pt\"", "\"format\" stands twice"},
      {"tensor twice", "\"b\":", "\"a\":", "tensor \"a\""},
      {"tensor twice, escaped", "\"e\":", "\"\\u0061\":", "tensor \"a\" stands twice"},
      {"unknown field", "\"dtype\":\"BF16\"", "\"dtype\":\"BF16\",\"x\":1",
       "tensor \"a\": unknown field \"x\""},
      {"dtype missing", "\"dtype\":\"BF16\",", "",
       "tensor \"a\": expected dtype, shape and data_offsets, dtype is missing"},
      {"shape missing", ",\"shape\":[2]", "", "shape is missing"},
      {"data_offsets missing", ",\"data_offsets\":[0,4]", "", "data_offsets is missing"},
      {"dtype twice", "\"dtype\":\"BF16\"", "\"dtype\":\"BF16\",\"dtype\":\"BF16\"",
       "\"dtype\" stands twice"},
      {"shape twice", "\"shape\":[2]", "\"shape\":[2],\"shape\":[2]", "\"shape\" stands twice"},
      {"data_offsets twice", "[0,4]", "[0,4],\"data_offsets\":[0,4]",
       "\"data_offsets\" stands twice"},
      {"dtype in lower case", "\"BF16\"", "\"bf16\"", "tensor \"a\": unknown dtype \"bf16\""},
      {"dtype is no string", "\"BF16\"", "16", "tensor \"a\": expected '\"'"},
      {"dtype too small", "\"BF16\"", "\"U8\"",
       "shape [2] of U8 needs 2 bytes, but data_offsets [0,4] hold 4"},
      {"shape too large", "[2,3]", "[2,4]",
       "shape [2,4] of F32 needs 32 bytes, but data_offsets [4,28] hold 24"},
      {"negative dimension", "[2,3]", "[-2,3]", "non-negative integer"},
      {"fraction", "[2,3]", "[2.0,3]", "fraction"},
      {"exponent", "[2,3]", "[2,3e0]", "exponent"},
      {"number as string", "[2,3]", "[\"2\",3]", "non-negative integer"},
      {"shape is no array", "[2,3]", "6", "expected an array"},
      {"shape overflows", "[2,3]", "[4611686018427387906,3]", "more bytes than a file can hold"},
      {"product wraps to the right size", "[2,3]", "[4611686018427387910]",
       "more bytes than a file can hold"},
      {"dimension beyond int64", "[0,7]", "[0,9223372036854775808]",
       "more bytes than a file can hold"},
      {"dimension beyond uint64", "[0,7]", "[0,18446744073709551616]", "below 2^64"},
      {"one offset", "[0,4]", "[4]", "expected two data_offsets, got 1"},
      {"three offsets", "[0,4]", "[0,4,4]", "expected two data_offsets, got 3"},
      {"negative offset", "[0,4]", "[-0,4]", "non-negative integer"},
      {"end before begin", "[0,4]", "[4,0]", "end before they begin"},
      {"beyond the file", "[28,28]", "[29,29]",
       "tensor \"e\": data_offsets [29,29], but the file holds 28 bytes"},
      {"far beyond the file", "[28,28]", "[28,18446744073709551615]",
       "but the file holds 28 bytes"},
      {"overlap", "[4,28]", "[3,27]",
       "tensor \"b\": begins at byte 3 of the data, expected 4, where tensor \"a\" ends: they "
       "overlap"},
      {"gap", "[2],\"data_offsets\":[0,4]", "[1],\"data_offsets\":[0,2]",
       "tensor \"b\": begins at byte 4 of the data, expected 2, where tensor \"a\" ends: there is "
       "a gap"},
      {"gap at the begin", "[2],\"data_offsets\":[0,4]", "[1],\"data_offsets\":[2,4]",
       "expected 0, where the data begins: there is a gap"},
      {"empty tensor inside another", "[28,28]", "[7,7]", "they overlap"},
      {"invalid UTF-8", "\"e\":", "\"\xff\":", "UTF-8"},
      {"control character", "\"e\":", "\"\n\":", "character of a string"},
      {"lone surrogate", "\"e\":", "\"\\udc00\":", "surrogate"},
  };
  ASSERT_EQ(HeaderMessage(Container(kHeader, kDataBytes)), "accepted");
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.rule);
    std::string header(kHeader);
    const size_t at = header.find(damage.from);
    ASSERT_NE(at, std::string::npos);
    header.replace(at, damage.from.size(), damage.to);
    EXPECT_THAT(HeaderMessage(Container(header, kDataBytes)),
                AllOf(HasSubstr("x.safetensors: "), HasSubstr(damage.message)));
  }
}

TEST(Safetensors, RefusesDTypesWithoutWholeBytes) {
  std::string header(kHeader);
  header.replace(header.find("BF16"), 4, "F4");
  EXPECT_THAT(HeaderMessage(Container(header, kDataBytes), ErrorCode::kUnsupported),
              HasSubstr("tensor \"a\": dtype \"F4\" is not supported"));
}

TEST(Safetensors, RefusesFilesOfAnotherSize) {
  const std::string file = Container(kHeader, kDataBytes);
  EXPECT_THAT(HeaderMessage(file + "d"), HasSubstr("expected the size of the file"));
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(HeaderMessage(file.substr(0, size)), HasSubstr("x.safetensors: ")) << size;
  }
  EXPECT_THAT(HeaderMessage(file.substr(0, file.size() - 1)), HasSubstr("truncated"));
}

TEST(Safetensors, RefusesWrongHeaderLengths) {
  const std::string file = Container(kHeader, kDataBytes);
  const auto with_length = [&](uint64_t length) {
    std::string changed = file;
    for (size_t i = 0; i < 8; ++i) changed[i] = static_cast<char>(length >> (8 * i));
    return changed;
  };
  const uint64_t right = kHeader.size();
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, right - 3, right + 1, right + kDataBytes,
        right + kDataBytes + 1, (uint64_t{256} << 20) + 1, uint64_t{1} << 63, UINT64_MAX,
        UINT64_MAX - 7}) {
    EXPECT_THAT(HeaderMessage(with_length(length)), HasSubstr("x.safetensors: ")) << length;
  }
  EXPECT_THAT(HeaderMessage(with_length(uint64_t{1} << 63)), HasSubstr("not a safetensors file"));
  EXPECT_THAT(HeaderMessage(with_length(right + kDataBytes + 1)), HasSubstr("truncated"));
}

TEST(Safetensors, HeadOfALargerFile) {
  const std::string file = Container(kHeader, kDataBytes);
  const std::string head = file.substr(0, 8 + kHeader.size());
  EXPECT_EQ(SafetensorsHeader::Parse(head, file.size(), "x").size(), 3u);
  EXPECT_THROW(SafetensorsHeader::Parse(head.substr(0, head.size() - 1), file.size(), "x"), Error);
  EXPECT_THROW(SafetensorsHeader::Parse("", file.size(), "x"), Error);
}

TEST(Safetensors, DeepNestingDoesNotUseTheStack) {
  const std::string deep = "{\"a\":" + std::string(1 << 20, '[');
  EXPECT_THAT(HeaderMessage(Container(deep, 0)), HasSubstr("tensor \"a\""));
}

// Whatever the bytes are: an Error or a header whose ranges lie in the file. Run under
// AddressSanitizer this also shows that nothing is read outside of them.
TEST(Safetensors, RandomMutationsNeverCrash) {
  std::mt19937 random(7);
  const std::string valid = Container(kHeader, kDataBytes);
  int num_accepted = 0;
  for (int trial = 0; trial < 100000; ++trial) {
    std::string file = valid;
    for (size_t change = random() % 4 + 1; change > 0; --change) {
      const size_t at = random() % file.size();
      switch (random() % 3) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = kHeader[random() % kHeader.size()];
          break;
        default:
          file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
          break;
      }
    }
    try {
      const SafetensorsHeader header = ParseFile(file);
      ++num_accepted;
      for (size_t i = 0; i < header.size(); ++i) {
        const TensorEntry& entry = header.entry(i);
        ASSERT_GE(entry.offset, header.data_begin());
        ASSERT_LE(entry.bytes, file.size() - entry.offset);
        ASSERT_EQ(header.Find(header.name(i)), &entry);
      }
    } catch (const Error& e) {
      ASSERT_TRUE(std::string_view(e.what()).starts_with("x.safetensors: ")) << e.what();
    }
  }
  EXPECT_GT(num_accepted, 1000);
}

// --- Files ---

TEST(Safetensors, ReadErrorsAndTruncationOfFiles) {
  MemoryFileSystem memory;
  memory.Write("a", Container(kHeader, kDataBytes));
  FaultyFileSystem fs(memory);
  EXPECT_EQ(SafetensorsHeader::Read(*fs.OpenForReading("a")).size(), 3u);
  EXPECT_LE(fs.bytes_read(), 8 + kHeader.size());  // no weights
  const int64_t num_reads = fs.num_reads();
  for (int64_t n = 0; n < num_reads; ++n) {
    fs.FailReads("a", n);
    EXPECT_THROW(SafetensorsHeader::Read(*fs.OpenForReading("a")), Error) << n;
    fs.ClearFaults();
  }
  for (uint64_t bytes = 0; bytes < 8 + kHeader.size() + kDataBytes; ++bytes) {
    fs.Truncate("a", bytes);
    EXPECT_THROW(SafetensorsHeader::Read(*fs.OpenForReading("a")), Error) << bytes;
  }
}

std::vector<std::string> ShardsOf(const std::string& dir) {
  std::vector<std::string> shards;
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() == ".safetensors") shards.push_back(file.path());
  }
  return shards;
}

TEST(Safetensors, RealShards) {
  size_t num_tensors = 0;
  for (const std::string& dir : {NanoDir(), DataPath("official/model")}) {
    for (const std::string& shard : ShardsOf(dir)) {
      num_tensors += SafetensorsHeader::Read(*RealFileSystem().OpenForReading(shard)).size();
    }
  }
  EXPECT_EQ(num_tensors, 6458u);
}

TEST(Safetensors, FixturesOfAnotherWriter) {
  SHARED_OR_SKIP(dir, "fixtures/st");
  const auto file = RealFileSystem().OpenForReading(dir + "/model-00001-of-00002.safetensors");
  const SafetensorsHeader header = SafetensorsHeader::Read(*file);
  EXPECT_EQ(header.size(), 10u);
  EXPECT_EQ(ShapeName(header.Find("rank3.f32")->shape), "[2,3,4]");
  EXPECT_EQ(ShapeName(header.Find("rank4.u8")->shape), "[2,2,2,2]");
  EXPECT_EQ(header.Find("scalar.f32")->bytes, 4u);
  EXPECT_EQ(header.Find("empty.f32")->bytes, 0u);
  EXPECT_EQ(header.Find("plain.f32.2d")->offset, header.data_begin());
  const auto second = RealFileSystem().OpenForReading(dir + "/model-00002-of-00002.safetensors");
  EXPECT_NE(SafetensorsHeader::Read(*second).Find("weird\\name.\"with\"quotes"), nullptr);
}

TEST(Safetensors, FixtureWithPaddedHeader) {
  SHARED_OR_SKIP(path, "fixtures/cache/model-00001-of-00001.safetensors");
  EXPECT_EQ(SafetensorsHeader::Read(*RealFileSystem().OpenForReading(path)).size(), 144u);
}

}  // namespace
}  // namespace deltafin
