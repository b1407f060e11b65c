#include "deltafin/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "deltafin/error.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/hash.h"
#include "store/checkpoint.h"
#include "store/synth_config.h"
#include "store/synth_layout.h"
#include "store/synth_routing.h"
#include "store/synth_values.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

SynthOptions Small(const std::string& dir) {
  SynthOptions options;
  options.dir = dir;
  options.like = SynthLike::kNano;
  options.layers = 5;
  options.experts = 12;
  options.vocab = 1024;
  options.threads = 3;
  return options;
}

// "" when nothing is thrown.
std::string MessageOf(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

// File name to the hash of its bytes; vision's holes left out.
std::map<std::string, std::string> HashesOf(const std::string& dir) {
  std::map<std::string, std::string> hashes;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    const auto file = RealFileSystem().OpenForReading(entry.path().string());
    if (file->size() < 50'000'000) hashes[entry.path().filename().string()] = Sha256OfFile(*file);
  }
  return hashes;
}

TEST(Synth, OpensWithTheLayoutOfTheRelease) {
  const TempDir dir;
  const SynthOptions options = Small(dir / "model");
  const SynthSize size = SizeOfSynth(options);
  WriteSynth(options);
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), options.dir);
  EXPECT_EQ(checkpoint->num_shards(), 8u);  // five layers, top, projector, vision tower
  EXPECT_EQ(size.num_shards, 8);
  EXPECT_EQ(checkpoint->total_bytes(), size.file_bytes);
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(c.is_mla, (std::vector<bool>{false, false, false, true, true}));
  // Spans lie back to back in the order of decimal strings, and not at pages.
  EXPECT_EQ(checkpoint->ExpertSpan(1, 2).offset,
            checkpoint->ExpertSpan(1, 0).offset + 4 * checkpoint->expert_bytes());
  bool unaligned = false;
  for (int64_t layer = 1; layer < 5; ++layer) {
    unaligned |= checkpoint->ExpertSpan(layer, 0).offset % kReadAlignment != 0;
  }
  EXPECT_TRUE(unaligned);
}

TEST(Synth, BytesDependOnTheOptionsAlone) {
  const TempDir dir;
  SynthOptions options = Small(dir / "a");
  WriteSynth(options);
  const auto first = HashesOf(options.dir);
  options.dir = dir / "b";
  options.threads = 1;
  WriteSynth(options);
  EXPECT_EQ(HashesOf(options.dir), first);
  options.dir = dir / "c";
  options.seed = 2;
  WriteSynth(options);
  const auto other = HashesOf(options.dir);
  EXPECT_NE(other.at("model-00002-of-000008.safetensors"),
            first.at("model-00002-of-000008.safetensors"));
  EXPECT_EQ(other.at("config.json"), first.at("config.json"));
}

// Stopped at every report in turn: nothing opens before it is whole, and the next call goes on.
TEST(Synth, GoesOnWhereItStopped) {
  const TempDir dir;
  SynthOptions whole = Small(dir / "whole");
  WriteSynth(whole);
  SynthOptions options = Small(dir / "stopped");
  int stops = 0;
  for (bool finished = false; !finished; ++stops) {
    ASSERT_LT(stops, 100);
    int reports = 0;
    options.on_progress = [&](const SynthProgress& p) {
      EXPECT_LE(p.done_bytes, p.total_bytes);
      return ++reports <= stops || p.done_bytes == p.total_bytes;
    };
    const std::string message = MessageOf(ErrorCode::kCancelled, [&] { WriteSynth(options); });
    finished = message.empty();
    if (finished) break;
    EXPECT_THROW(Checkpoint::Open(RealFileSystem(), options.dir), Error);
    for (const fs::directory_entry& entry : fs::directory_iterator(options.dir)) {
      EXPECT_NE(entry.path().extension(), ".partial");
    }
  }
  EXPECT_GT(stops, 3);
  EXPECT_EQ(HashesOf(options.dir), HashesOf(whole.dir));
}

// Both would write the same files.
TEST(Synth, TwoAtOnceDoNotHarmEachOther) {
  const TempDir dir;
  const SynthOptions options = Small(dir / "model");
  fs::create_directories(options.dir + "/.deltafin");
  {
    const FolderLock other(options.dir + "/.deltafin");
    EXPECT_THAT(MessageOf(ErrorCode::kIo, [&] { WriteSynth(options); }),
                HasSubstr("another process"));
  }
  WriteSynth(options);  // what that one has left is no other folder's content
}

TEST(Synth, LeavesOtherFoldersAlone) {
  const TempDir dir;
  SynthOptions options = Small(dir / "model");
  const auto refusal = [&] {
    return MessageOf(ErrorCode::kInvalidArgument, [&] { WriteSynth(options); });
  };
  WriteSynth(options);
  EXPECT_THAT(refusal(), HasSubstr("already holds a checkpoint"));
  fs::remove(options.dir + "/config.json");
  options.seed = 3;
  EXPECT_THAT(refusal(), HasSubstr("with other options"));
  options.dir = dir / "full";
  fs::create_directory(options.dir);
  std::ofstream(options.dir + "/letter.txt") << "mine";
  EXPECT_THAT(refusal(), HasSubstr("is not empty"));
}

TEST(Synth, RefusesWhatCannotBe) {
  const TempDir dir;
  const auto refusal = [&](const std::function<void(SynthOptions&)>& change) {
    SynthOptions options = Small(dir / "model");
    change(options);
    return MessageOf(ErrorCode::kInvalidArgument, [&] { SizeOfSynth(options); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.layers = -1; }), HasSubstr("layers: expected 1 to 1000"));
  EXPECT_THAT(refusal([](auto& o) { o.experts = 2000; }), HasSubstr("experts"));
  EXPECT_THAT(refusal([](auto& o) { o.vocab = 511; }), HasSubstr("vocab"));
  EXPECT_THAT(refusal([](auto& o) { o.skew = 4.1; }), HasSubstr("skew"));
  EXPECT_THAT(refusal([](auto& o) { o.skew = std::nan(""); }), HasSubstr("skew"));
  EXPECT_THAT(refusal([](auto& o) { o.reuse = 0.99; }), HasSubstr("reuse: expected 0 to 0."));
  SynthOptions sparse = Small(dir / "model");  // so few of so many that 0.3 is too much
  sparse.experts = 896;
  EXPECT_GT(SizeOfSynth(sparse).file_bytes, 0U);
  sparse.reuse = 0.3;
  EXPECT_THAT(MessageOf(ErrorCode::kInvalidArgument, [&] { SizeOfSynth(sparse); }),
              HasSubstr("reuse: expected 0 to 0.2"));
  SynthOptions big;
  big.dir = dir / "big";
  big.layers = 900;
  EXPECT_THAT(MessageOf(ErrorCode::kIo, [&] { WriteSynth(big); }),
              AllOf(HasSubstr("GB are to be written"), HasSubstr("skeleton")));
}

// total_size of the release, to the byte (spec section 2.6).
TEST(Synth, SkeletonOfTheReleaseHasItsSize) {
  const TempDir dir;
  SynthOptions options;
  options.dir = dir / "model";
  options.skeleton = true;
  const SynthSize size = SizeOfSynth(options);
  EXPECT_EQ(size.num_shards, 96);
  EXPECT_EQ(size.layers, 93);
  EXPECT_GT(size.file_bytes, 1560860324864u);
  EXPECT_LT(size.file_bytes, 1560860324864u + 100'000'000u);
  EXPECT_LT(size.write_bytes, 100'000'000u);
  const ModelConfig config = ModelConfig::Parse(SynthConfigJson([] {
                                                  SynthOptions o;
                                                  o.layers = 93;
                                                  o.experts = 896;
                                                  o.vocab = 163840;
                                                  return o;
                                                }()),
                                                "config.json");
  uint64_t total = 0;
  for (int64_t shard = 0; shard < 96; ++shard) {
    total += DataBytes(PlanShard(config, shard, VisionShards::kPresent));
  }
  EXPECT_EQ(total, 1560860324864u);
}

TEST(SynthTokenizer, TokensAreDifferentAndMadeOfEarlierOnes) {
  ModelConfig config;
  config.vocab_size = 163840;
  const std::string file = SynthRanks(config);
  std::set<std::string> tokens;
  size_t lines = 0;
  for (size_t at = 0; at < file.size(); ++lines) {
    const size_t end = file.find('\n', at);
    const std::string line = file.substr(at, end - at);
    EXPECT_TRUE(tokens.insert(line.substr(0, line.find(' '))).second) << line;
    ASSERT_EQ(line.substr(line.find(' ') + 1), std::to_string(lines));
    at = end + 1;
  }
  EXPECT_EQ(lines, 163840u - 256);
  EXPECT_EQ(file.substr(0, 15), "AA== 0\nAQ== 1\nA");
  EXPECT_TRUE(tokens.contains("YWJj"));      // "abc"
  EXPECT_TRUE(tokens.contains("IGFiYw=="));  // " abc"
}

// --- Values ---

ModelConfig SmallConfig() {
  return ModelConfig::Parse(SynthConfigJson([] {
                              SynthOptions o = Small("");
                              o.layers = 5;
                              return o;
                            }()),
                            "config.json");
}

std::vector<float> Bf16Values(const TensorSpec& spec, const SynthStyle& style) {
  std::vector<uint16_t> bits(static_cast<size_t>(NumElements(spec.shape)));
  const SynthTensor tensor(SmallConfig(), spec, style);
  std::span<std::byte> rest = std::as_writable_bytes(std::span(bits));
  for (uint64_t block = 0; !rest.empty(); ++block) {
    const size_t bytes = std::min<size_t>(rest.size(), SynthTensor::kBlockBytes);
    tensor.Fill(block, rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(Bf16ToFloat(b));
  return values;
}

TensorSpec Matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {name, DType::kBf16, {2, {rows, cols}}, false};
}

// Rows whose length is no multiple of four go through other code: it must give the same kind.
TEST(SynthValues, UnitGainForAnyWidth) {
  for (const int64_t cols : {256, 257, 258, 4096}) {
    const std::vector<float> values =
        Bf16Values(Matrix("self_attn.v_proj.weight", 600, cols), {1, 1, 0});
    double sum = 0;
    double squares = 0;
    for (const float v : values) {
      sum += v;
      squares += double{v} * v;
    }
    const double count = static_cast<double>(values.size());
    // 153,600 values and more: three standard errors are below 1 %.
    EXPECT_NEAR(squares / count * static_cast<double>(cols), 1, 0.01) << cols;
    EXPECT_NEAR(sum / count * std::sqrt(static_cast<double>(cols)), 0, 0.01) << cols;
  }
}

TEST(SynthValues, OutputOfAttentionIsPairedAndWritesOddRows) {
  const int64_t cols = 256;
  const std::vector<float> values =
      Bf16Values(Matrix("self_attn.o_proj.weight", 100, cols), {1, 1, 0});
  double squares[2] = {0, 0};
  for (size_t i = 0; i < values.size(); i += 2) {
    ASSERT_EQ(values[i], -values[i + 1]) << i;
    squares[i / cols % 2] += double{values[i]} * values[i];
  }
  EXPECT_NEAR(squares[0] / squares[1], 0.01, 0.001);  // 6,400 values each: 3 standard errors
}

TEST(SynthRouting, OverlapOfPicks) {
  // Nothing is asked for, or more than there is: the ends.
  EXPECT_NEAR(ContextShare(0, 0.1), 0, 1e-5);
  EXPECT_NEAR(ContextShare(1, 0.1), 1, 1e-5);
  EXPECT_EQ(ContextShare(0.3, 1), 0);
  EXPECT_LT(ContextShare(0.2, 0.1), ContextShare(0.3, 0.1));
  // Of a bivariate normal: correlation 0.74 and one of two picked give 1/2 + asin(0.74) / pi.
  EXPECT_NEAR(MaxReuse(0.5), 0.5 + std::asin(0.74) / std::acos(-1.0), 1e-4);
  EXPECT_GT(MaxReuse(16.0 / 896), 0.3);
}

}  // namespace
}  // namespace deltafin
