#include "store/fetch_units.h"

#include <gtest/gtest.h>

#include <map>

#include "io/file.h"
#include "store/checkpoint.h"

namespace deltafin {
namespace {

const std::string kNano = std::string(DELTAFIN_SOURCE_DIR) + "/models/k3-nano";

// Every byte of every shard is in one unit, and every expert's span is one.
TEST(FetchUnitsTest, CoverEachShardOnceAndKeepExpertsWhole) {
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), kNano);
  std::map<std::pair<int64_t, int64_t>, Extent> experts;
  for (uint32_t shard = 0; shard < checkpoint->num_shards(); ++shard) {
    const ReadableFile& file = checkpoint->file(shard);
    const auto units = UnitsOfShard(SafetensorsHeader::Read(file), file.size());
    ASSERT_FALSE(units.empty());
    EXPECT_EQ(units[0].kind, UnitKind::kHeader);
    uint64_t end = 0;
    for (const FetchUnit& unit : units) {
      EXPECT_EQ(unit.range.offset, end);
      end = unit.range.end();
      if (unit.kind != UnitKind::kExpert) {
        EXPECT_LE(unit.range.bytes, uint64_t{16} << 20);
        continue;
      }
      const bool is_new = experts
                              .emplace(std::pair(unit.layer, unit.expert),
                                       Extent{shard, unit.range.offset, unit.range.bytes})
                              .second;
      EXPECT_TRUE(is_new);
    }
    EXPECT_EQ(end, file.size());
  }
  const ModelConfig& config = checkpoint->config();
  size_t count = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsMoe(layer)) continue;
    for (int64_t expert = 0; expert < config.num_experts; ++expert, ++count) {
      const Extent span = checkpoint->ExpertSpan(layer, expert);
      const Extent& unit = experts.at({layer, expert});
      EXPECT_EQ(unit.shard, span.shard);
      EXPECT_EQ(unit.offset, span.offset);
      EXPECT_EQ(unit.bytes, span.bytes);
    }
  }
  EXPECT_EQ(experts.size(), count);
}

TEST(FetchUnitsTest, KnowsWhatTextDoesNotUse) {
  const std::string header =
      R"({"vision_tower.a":{"dtype":"U8","shape":[40000000],"data_offsets":[0,40000000]},)"
      R"("language_model.model.norm.weight":{"dtype":"U8","shape":[10],"data_offsets":[40000000,40000010]},)"
      R"("language_model.model.layers.7.input_layernorm.weight":{"dtype":"U8","shape":[10],"data_offsets":[40000010,40000020]}})";
  std::string head(8, '\0');
  head[0] = static_cast<char>(header.size() & 0xff);
  head[1] = static_cast<char>(header.size() >> 8);
  head += header;
  const uint64_t bytes = head.size() + 40'000'020;
  const auto units = UnitsOfShard(SafetensorsHeader::Parse(head, bytes, "test"), bytes);
  ASSERT_EQ(units.size(), 6u);  // header, three pieces of vision, the norm, the layer's
  EXPECT_EQ(units[1].kind, UnitKind::kOther);
  EXPECT_EQ(units[3].kind, UnitKind::kOther);
  EXPECT_EQ(units[4].kind, UnitKind::kSpine);
  EXPECT_EQ(units[4].layer, -1);
  EXPECT_EQ(units[5].layer, 7);
}

}  // namespace
}  // namespace deltafin
