#include "io/index_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>

#include "base/format.h"
#include "deltafin/json.h"
#include "io/testing_file_system.h"
#include "shared_data.h"

namespace deltafin {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kIndex = R"({
  "metadata": {"total_size": 123, "format": {"x": [1, null]}},
  "weight_map": {
    "b": "model-2.safetensors",
    "a": "model-1.safetensors",
    "c": "model-2.safetensors",
    "B\u00e4": "model-1.safetensors"
  }
}
)";

std::string IndexMessage(std::string_view json) {
  try {
    ShardIndex::Parse(std::string(json), "index.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
    return e.what();
  }
  return "accepted";
}

TEST(ShardIndex, FindsTensors) {
  const ShardIndex index = ShardIndex::Parse(std::string(kIndex), "index.json");
  EXPECT_EQ(index.num_tensors(), 4u);
  EXPECT_EQ(index.total_size(), 123u);
  EXPECT_THAT(index.shards(), ElementsAre("model-1.safetensors", "model-2.safetensors"));
  EXPECT_EQ(index.Find("a"), 0);
  EXPECT_EQ(index.Find("b"), 1);
  EXPECT_EQ(index.Find("c"), 1);
  EXPECT_EQ(index.Find("Bä"), 0);
  for (const std::string_view absent : {"", "A", "ab", "d", "metadata"}) {
    EXPECT_EQ(index.Find(absent), -1) << absent;
  }
  EXPECT_EQ(index.tensor(0), "Bä");
  EXPECT_EQ(index.tensor(3), "c");
  EXPECT_EQ(index.shard(3), 1u);
}

TEST(ShardIndex, MetadataIsOptional) {
  const ShardIndex index = ShardIndex::Parse(R"({"weight_map":{}})", "index.json");
  EXPECT_EQ(index.num_tensors(), 0u);
  EXPECT_EQ(index.total_size(), 0u);
  EXPECT_EQ(index.Find("a"), -1);
}

struct Damage {
  const char* rule;
  std::string_view from;
  std::string_view to;
  const char* message;
};

TEST(ShardIndex, RefusesEveryBrokenRule) {
  const Damage kDamages[] = {
      {"not an object", "{\n  \"meta", "[\n  \"meta", "expected an object"},
      {"no weight_map", "\"weight_map\"", "\"metadata\"", "stands twice"},
      {"unknown field", "\"weight_map\"", "\"weights\"", "unknown field \"weights\""},
      {"weight_map is no object", "\"weight_map\": {", "\"weight_map\": 1, \"x\": {",
       "expected an object"},
      {"weight_map twice", "\n}\n", ",\"weight_map\":{}}", "\"weight_map\" stands twice"},
      {"metadata twice", "\n}\n", ",\"metadata\":{}}", "\"metadata\" stands twice"},
      {"metadata is no object", "{\"total_size\": 123, \"format\": {\"x\": [1, null]}}", "7",
       "expected an object"},
      {"size twice", "123", "123, \"total_size\": 123", "\"total_size\" stands twice"},
      {"size negative", "123", "-123", "non-negative integer"},
      {"size with fraction", "123", "123.0", "fraction"},
      {"size too large", "123", "18446744073709551616", "below 2^64"},
      {"size as string", "123", "\"123\"", "non-negative integer"},
      {"bad value that is skipped", "null", "nul", "expected null"},
      {"key twice that is skipped", "[1, null]", "1, \"x\": 2", "\"x\" stands twice"},
      {"tensor twice", "\"b\"", "\"a\"", "tensor \"a\" stands twice in weight_map"},
      {"tensor twice, escaped", "\"b\"", "\"\\u0061\"", "tensor \"a\" stands twice in weight_map"},
      {"shard is no string", "\"a\": \"model-1.safetensors\"", "\"a\": 1",
       "tensor \"a\": expected '\"'"},
      {"shard with slash", "\"model-1", "\"../model-1",
       "tensor \"a\": expected the name of a file"},
      {"shard with backslash", "\"model-1", "\"..\\\\model-1", "name of a file"},
      {"shard with zero", "\"model-1", "\"\\u0000model-1", "name of a file"},
      {"shard is the folder", "\"model-1.safetensors\"", "\"..\"", "name of a file"},
      {"shard is empty", "\"model-1.safetensors\"", "\"\"", "name of a file"},
      {"missing comma", "\"model-1.safetensors\",", "\"model-1.safetensors\"",
       "expected ',' or '}'"},
      {"trailing comma", "\n  }\n", ",\n  }\n", "expected '\"'"},
      {"garbage at the end", "\n}\n", "\n}\nx", "nothing after the document"},
      {"invalid UTF-8", "\"b\"", "\"\xc3\"", "UTF-8"},
  };
  ASSERT_EQ(IndexMessage(kIndex), "accepted");
  EXPECT_THAT(IndexMessage("{}"), HasSubstr("\"weight_map\", it is missing"));
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.rule);
    std::string json(kIndex);
    const size_t at = json.find(damage.from);
    ASSERT_NE(at, std::string::npos);
    json.replace(at, damage.from.size(), damage.to);
    EXPECT_THAT(IndexMessage(json), AllOf(HasSubstr("index.json: "), HasSubstr(damage.message)));
  }
  const size_t document = kIndex.rfind('}');
  for (size_t size = 0; size <= document; ++size) {
    EXPECT_THAT(IndexMessage(kIndex.substr(0, size)), HasSubstr("the end of the text")) << size;
  }
}

TEST(ShardIndex, TooManyShards) {
  std::string json = "{\"weight_map\":{";
  for (int i = 0; i < 65536; ++i) json += format("{}\"t{}\":\"s{}\"", i == 0 ? "" : ",", i, i);
  EXPECT_THAT(IndexMessage(json + "}}"), HasSubstr("more than 65535 shards"));
}

TEST(ShardIndex, RandomMutationsNeverCrash) {
  std::mt19937 random(11);
  int num_accepted = 0;
  for (int trial = 0; trial < 100000; ++trial) {
    std::string json(kIndex);
    for (size_t change = random() % 3 + 1; change > 0; --change) {
      const size_t at = random() % json.size();
      json[at] = random() % 2 == 0 ? static_cast<char>(random()) : kIndex[random() % kIndex.size()];
    }
    try {
      const ShardIndex index = ShardIndex::Parse(json, "index.json");
      ++num_accepted;
      for (size_t i = 0; i < index.num_tensors(); ++i) {
        ASSERT_EQ(index.Find(index.tensor(i)), static_cast<int>(index.shard(i)));
        ASSERT_LT(index.shard(i), index.shards().size());
      }
    } catch (const Error& e) {
      ASSERT_TRUE(std::string_view(e.what()).starts_with("index.json: ")) << e.what();
    }
  }
  EXPECT_GT(num_accepted, 1000);
}

// Against another parser, from a file, in more than one piece.
TEST(ShardIndex, RealIndexes) {
  for (const std::string& dir : {NanoDir(), DataPath("official/model")}) {
    const std::string path = JoinPath(dir, "model.safetensors.index.json");
    const Json json = ParseJson(ReadWholeFile(RealFileSystem(), path, 64 << 20), path);
    const ShardIndex index = ShardIndex::Read(RealFileSystem(), path);
    EXPECT_EQ(index.total_size(), json["metadata"]["total_size"]);
    ASSERT_EQ(index.num_tensors(), json["weight_map"].size());
    EXPECT_TRUE(std::is_sorted(index.shards().begin(), index.shards().end()));
    for (const auto& [tensor, shard] : json["weight_map"].items()) {
      const int found = index.Find(tensor);
      ASSERT_GE(found, 0) << tensor;
      EXPECT_EQ(index.shards()[static_cast<size_t>(found)], shard);
    }
  }
}

TEST(ShardIndex, ReadErrors) {
  MemoryFileSystem memory;
  memory.Write("index.json", std::string(kIndex) + std::string(3 << 20, ' '));
  FaultyFileSystem fs(memory);
  EXPECT_EQ(ShardIndex::Read(fs, "index.json").num_tensors(), 4u);
  const int64_t num_reads = fs.num_reads();
  EXPECT_GT(num_reads, 2);
  for (int64_t n = 0; n < num_reads; ++n) {
    fs.FailReads("", n);
    EXPECT_THROW(ShardIndex::Read(fs, "index.json"), Error) << n;
    fs.ClearFaults();
  }
}

// --- The size of the real one ---

// Peak resident bytes since the last ResetPeak, 0 where the system does not say.
uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

uint64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

// False where the system cannot.
bool ResetPeak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return clear.good();
}

// 92 layers x 896 experts x 6 tensors and a few more, in the order that the hub's file has: shard
// by shard, the names of a shard in no order.
void WriteIndexOfK3Size(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out << "{\n  \"metadata\": {\n    \"total_size\": 1560860324864\n  },\n  \"weight_map\": {";
  std::mt19937 random(3);
  const char* separator = "\n";
  for (int layer = 1; layer <= 92; ++layer) {
    std::vector<std::string> names;
    for (int expert = 0; expert < 896; ++expert) {
      for (const char* part : {"w1", "w2", "w3"}) {
        for (const char* kind : {"weight_packed", "weight_scale"}) {
          names.push_back(format("language_model.model.layers.{}.block_sparse_moe.experts.{}.{}.{}",
                                 layer, expert, part, kind));
        }
      }
    }
    for (int i = 0; i < 28; ++i) {
      names.push_back(format("language_model.model.layers.{}.self_attn.part_{}.weight", layer, i));
    }
    std::shuffle(names.begin(), names.end(), random);
    for (const std::string& name : names) {
      out << format("{}    \"{}\": \"model-{:05}-of-000096.safetensors\"", separator, name, layer);
      separator = ",\n";
    }
  }
  out << "\n  }\n}\n";
}

TEST(ShardIndex, SizeOfK3) {
  const std::string path = ::testing::TempDir() + format("deltafin_index_{}.json", ::getpid());
  WriteIndexOfK3Size(path);
  const uint64_t before = ResidentBytes();
  const bool can_measure = ResetPeak() && before != 0;
  const auto begin = std::chrono::steady_clock::now();
  const ShardIndex index = ShardIndex::Read(RealFileSystem(), path);
  const auto seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double peak = static_cast<double>(PeakBytes()) - static_cast<double>(before);
  const double kept = static_cast<double>(ResidentBytes()) - static_cast<double>(before);
  RecordProperty("seconds", format("{:.3f}", seconds));
  std::printf("%zu tensors: %.2f s, peak %.1f MB, kept %.1f MB\n", index.num_tensors(), seconds,
              peak / 1e6, kept / 1e6);
  std::remove(path.c_str());

  EXPECT_EQ(index.num_tensors(), 92u * (896 * 6 + 28));
  EXPECT_EQ(index.shards().size(), 92u);
  EXPECT_EQ(
      index.Find("language_model.model.layers.57.block_sparse_moe.experts.895.w2.weight_scale"),
      56);
  EXPECT_EQ(index.total_size(), 1560860324864u);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  if (!can_measure) GTEST_SKIP() << "the system does not tell the peak";
  EXPECT_LT(peak, 100e6);
  EXPECT_LT(kept, 50e6);
}

}  // namespace
}  // namespace deltafin
