#include "io/index_json.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/format.h"
#include "io/json_reader.h"
#include "io/quote.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;  // so that 32 bits hold a place in the arena
constexpr size_t kPieceBytes = size_t{1} << 20;

// What a ShardIndex holds, in the order of the file.
struct Listing {
  NameList names;
  std::vector<uint16_t> shard_of;
  std::vector<std::string> shards;
  uint64_t total_size = 0;
};

bool IsFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return c == '/' || c == '\\' || byte < 0x20 || byte == 0x7f;
         });
}

class IndexParser {
 public:
  // Reserves room for names that fill the whole document: only pages that are written to take
  // memory, while growing would copy.
  IndexParser(JsonReader& reader, uint64_t json_bytes) : reader_(reader) {
    out_.names.Reserve(0, json_bytes);
  }

  Listing Parse() {
    std::vector<std::string> fields;
    std::string field;
    reader_.BeginObject();
    while (reader_.NextKey(field)) {
      if (field == "metadata") {
        ParseMetadata();
      } else if (field == "weight_map") {
        ParseWeightMap();
      } else {
        reader_.Fail(format("unknown field {}, expected metadata and weight_map", Quote(field)));
      }
      fields.push_back(field);
    }
    RefuseRepeatedKeys(fields, reader_);
    reader_.ExpectEnd();
    if (std::find(fields.begin(), fields.end(), "weight_map") == fields.end()) {
      reader_.Fail("expected the field \"weight_map\", it is missing");
    }
    return std::move(out_);
  }

 private:
  void ParseMetadata() {
    std::vector<std::string> fields;
    std::string field;
    reader_.BeginObject();
    while (reader_.NextKey(field)) {
      if (field == "total_size") {
        out_.total_size = reader_.ReadUint();
      } else {
        reader_.SkipValue();
      }
      fields.push_back(field);
    }
    RefuseRepeatedKeys(fields, reader_);
  }

  void ParseWeightMap() {
    std::string tensor;
    std::string shard;
    reader_.set_subject([&tensor] { return format("tensor {}", Quote(tensor)); });
    reader_.BeginObject();
    while (reader_.NextKey(tensor)) {
      reader_.ReadString(shard);
      out_.names.Add(tensor);
      out_.shard_of.push_back(NumberOf(shard));
    }
    reader_.set_subject(nullptr);
  }

  // Tensors of one shard mostly stand together, so the last one is tried first.
  uint16_t NumberOf(const std::string& shard) {
    if (!out_.shard_of.empty()) {
      const uint16_t last = out_.shard_of.back();
      if (out_.shards[last] == shard) return last;
    }
    const auto [known, is_new] =
        number_of_.try_emplace(shard, static_cast<uint16_t>(out_.shards.size()));
    if (is_new) {
      if (!IsFileName(shard)) {
        reader_.Fail(
            format("expected the name of a file in the same folder, got {}", Quote(shard)));
      }
      if (out_.shards.size() == std::numeric_limits<uint16_t>::max()) {
        reader_.Fail("more than 65535 shards");
      }
      out_.shards.push_back(shard);
    }
    return known->second;
  }

  JsonReader& reader_;
  Listing out_;
  std::map<std::string, uint16_t> number_of_;
};

// Sorts the shards by name and gives the tensors their new numbers.
void SortShards(Listing& index) {
  std::vector<uint16_t> order(index.shards.size());
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::sort(order.begin(), order.end(),
            [&](uint16_t a, uint16_t b) { return index.shards[a] < index.shards[b]; });
  std::vector<uint16_t> number(order.size());
  for (size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<uint16_t>(i);
  for (uint16_t& shard : index.shard_of) shard = number[shard];
  std::sort(index.shards.begin(), index.shards.end());
}

// Sorts the tensors. Both copies of the names exist for a moment: the peak of the memory.
void SortTensors(Listing& index, const std::string& file) {
  const std::vector<uint32_t> order = index.names.SortedOrder();
  index.names = index.names.InOrder(order);
  std::vector<uint16_t> shard_of;
  shard_of.reserve(order.size());
  for (const uint32_t i : order) shard_of.push_back(index.shard_of[i]);
  index.shard_of = std::move(shard_of);
  if (const auto repeated = index.names.FindRepeated()) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: tensor {} stands twice in weight_map", file, Quote(*repeated)));
  }
}

// The document in pieces of kPieceBytes.
JsonReader::Refill PiecesOf(const ReadableFile& file) {
  return [&file, at = uint64_t{0}, piece = std::string()]() mutable -> std::string_view {
    piece.resize(std::min<uint64_t>(kPieceBytes, file.size() - at));
    if (!piece.empty()) file.ReadAt(at, std::as_writable_bytes(std::span(piece)));
    at += piece.size();
    return piece;
  };
}

}  // namespace

ShardIndex ShardIndex::FromReader(JsonReader& reader, uint64_t json_bytes,
                                  const std::string& name) {
  if (json_bytes > kMaxIndexBytes) {
    throw Error(ErrorCode::kCorrupt, format("{}: has {} bytes, expected an index of at most {}",
                                            name, json_bytes, kMaxIndexBytes));
  }
  Listing listing = IndexParser(reader, json_bytes).Parse();
  SortShards(listing);
  SortTensors(listing, name);
  ShardIndex index;
  index.names_ = std::move(listing.names);
  index.shard_of_ = std::move(listing.shard_of);
  index.shards_ = std::move(listing.shards);
  index.total_size_ = listing.total_size;
  return index;
}

ShardIndex ShardIndex::Read(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<ReadableFile> file = fs.OpenForReading(path);
  JsonReader reader(PiecesOf(*file), path);
  return FromReader(reader, file->size(), path);
}

ShardIndex ShardIndex::Parse(const std::string& json, const std::string& name) {
  JsonReader reader(json, name);
  return FromReader(reader, json.size(), name);
}

int ShardIndex::Find(std::string_view tensor) const {
  const std::optional<size_t> i = names_.Find(tensor);
  return i ? shard_of_[*i] : -1;
}

}  // namespace deltafin
