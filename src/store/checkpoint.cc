#include "store/checkpoint.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "io/index_json.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();

bool Accepts(const TensorSpec& spec, DType dtype, const TensorShape& shape) {
  if (dtype != spec.dtype || shape.rank != spec.shape.rank) return false;
  if (spec.may_be_longer) return shape.dims[0] >= spec.shape.dims[0];
  return std::equal(shape.dims, shape.dims + shape.rank, spec.shape.dims);
}

std::string Expected(const TensorSpec& spec) {
  return format("{} {}{}", DTypeName(spec.dtype), ShapeName(spec.shape),
                spec.may_be_longer ? " or longer" : "");
}

void Check(const TensorSpec& spec, DType dtype, const TensorShape& shape, const std::string& file) {
  if (Accepts(spec, dtype, shape)) return;
  throw Error(ErrorCode::kCorrupt,
              format("{}: tensor {} is {} {}, expected {} (the file does not belong to this "
                     "config.json, or is damaged)",
                     file, spec.name, DTypeName(dtype), ShapeName(shape), Expected(spec)));
}

}  // namespace

// Fills a Checkpoint. Reads one shard header at a time: all of them at once would take ten times
// the memory of what is kept.
class Checkpoint::Opener {
 public:
  Opener(FileSystem& fs, Checkpoint& checkpoint)
      : fs_(fs), c_(checkpoint), index_path_(JoinPath(c_.dir_, "model.safetensors.index.json")) {}

  void Run() {
    const std::string config_path = JoinPath(c_.dir_, "config.json");
    c_.config_ = ModelConfig::Parse(ReadWholeFile(fs_, config_path, kMaxConfigBytes), config_path);
    const ShardIndex index = ShardIndex::Read(fs_, index_path_);
    ListSpine();
    PrepareExperts();
    OpenShards(index);
    CheckSpineComplete();
    CheckExperts();
  }

 private:
  void ListSpine() {
    auto add = [&](const TensorSpec& spec) {
      if (!spec.name.empty()) expected_.emplace(spec.name, spec);
    };
    auto add_layer = [&](const LayerLayout& layout) {
      for (const VectorSpec& v : layout.vectors) add(v.tensor), add(v.second);
      for (const MatrixSpec& m : layout.matrices) add(m.tensor);
    };
    for (int64_t layer = 0; layer < c_.config_.num_layers; ++layer) {
      add_layer(LayoutOfLayer(c_.config_, layer));
    }
    add_layer(LayoutOfTop(c_.config_));
    add(LayoutOfEmbedding(c_.config_));
  }

  void PrepareExperts() {
    const ModelConfig& config = c_.config_;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      if (!config.IsMoe(layer)) continue;
      expert_specs_ = LayoutOfExpert(config, layer, 0);
      break;
    }
    for (size_t part = 0; part < expert_specs_.size(); ++part) {
      c_.expert_part_begins_[part] = c_.expert_bytes_;
      c_.expert_bytes_ += static_cast<uint64_t>(NumElements(expert_specs_[part].shape));
    }
    const size_t count = static_cast<size_t>(config.num_layers * config.num_experts);
    c_.expert_spans_.resize(count);
    part_offsets_.assign(count * kExpertParts, kNowhere);
    part_shards_.assign(count * kExpertParts, 0);
  }

  void OpenShards(const ShardIndex& index) {
    const std::vector<std::string>& names = index.shards();
    CheckShardsExist(names);
    c_.holds_text_.resize(names.size());
    std::vector<std::vector<size_t>> listed(names.size());  // tensors of a shard, sorted by name
    for (size_t i = 0; i < index.num_tensors(); ++i) listed[index.shard(i)].push_back(i);
    for (size_t shard = 0; shard < names.size(); ++shard) {
      c_.files_.push_back(fs_.OpenForReading(JoinPath(c_.dir_, names[shard])));
      const ReadableFile& file = *c_.files_.back();
      c_.total_bytes_ += file.size();
      const SafetensorsHeader header = SafetensorsHeader::Read(file);
      CompareWithIndex(index, listed[shard], header, file.path());
      for (size_t i = 0; i < header.size(); ++i) {
        Take(static_cast<uint32_t>(shard), header.name(i), header.entry(i));
      }
    }
  }

  void CheckShardsExist(const std::vector<std::string>& names) {
    std::string first_missing;
    size_t num_missing = 0;
    for (const std::string& name : names) {
      if (fs_.Exists(JoinPath(c_.dir_, name))) continue;
      if (num_missing++ == 0) first_missing = name;
    }
    if (num_missing == 0) return;
    throw Error(ErrorCode::kNotFound,
                format("{} is missing{}: {} of {} shard files are there; the download is not "
                       "complete (deltafin setup --dir {} goes on with it)",
                       JoinPath(c_.dir_, first_missing),
                       num_missing > 1 ? format(" and so are {} others", num_missing - 1) : "",
                       names.size() - num_missing, names.size(), c_.dir_));
  }

  // Both are sorted by name and must be the same list.
  void CompareWithIndex(const ShardIndex& index, const std::vector<size_t>& listed,
                        const SafetensorsHeader& header, const std::string& file) const {
    size_t i = 0;
    for (size_t j = 0; j < header.size(); ++j, ++i) {
      if (i < listed.size() && index.tensor(listed[i]) == header.name(j)) continue;
      if (i < listed.size() && index.tensor(listed[i]) < header.name(j)) break;
      const int other = index.Find(header.name(j));
      throw Error(ErrorCode::kCorrupt,
                  format("{} holds tensor {}, but {} says {}; the two do not belong together", file,
                         header.name(j), index_path_,
                         other < 0 ? std::string("nothing of it")
                                   : "it is in " + index.shards()[static_cast<size_t>(other)]));
    }
    if (i == listed.size()) return;
    throw Error(ErrorCode::kCorrupt,
                format("{} says that tensor {} is in {}, whose header does not have it; the two do "
                       "not belong together",
                       index_path_, index.tensor(listed[i]), file));
  }

  void Take(uint32_t shard, std::string_view name, const TensorEntry& entry) {
    if (!name.starts_with(kTextPrefix) || IsUnusedTensor(name)) return;
    c_.holds_text_[shard] = true;
    if (const std::optional<ExpertTensorName> parsed = ParseExpertTensorName(name)) {
      TakeExpertPart(shard, name, *parsed, entry);
      return;
    }
    const auto it = expected_.find(name);
    if (it == expected_.end()) {
      throw Error(
          ErrorCode::kUnsupported,
          format("{}: tensor {} is not part of a Kimi K3 with this config.json; expected "
                 "no such tensor, got {} {}",
                 c_.files_[shard]->path(), name, DTypeName(entry.dtype), ShapeName(entry.shape)));
    }
    Check(it->second, entry.dtype, entry.shape, c_.files_[shard]->path());
    c_.spine_.emplace(std::string(name),
                      Located{{shard, entry.offset, entry.bytes}, entry.dtype, entry.shape});
  }

  void TakeExpertPart(uint32_t shard, std::string_view name, const ExpertTensorName& parsed,
                      const TensorEntry& entry) {
    const ModelConfig& config = c_.config_;
    if (parsed.layer >= config.num_layers || !config.IsMoe(parsed.layer) ||
        parsed.expert >= config.num_experts) {
      throw Error(ErrorCode::kCorrupt,
                  format("{}: tensor {} is an expert that config.json does not have; expected {} "
                         "experts in each MoE layer below {}",
                         c_.files_[shard]->path(), name, config.num_experts, config.num_layers));
    }
    const TensorSpec& like = expert_specs_[static_cast<size_t>(parsed.part)];
    if (!Accepts(like, entry.dtype, entry.shape)) {
      const std::vector<TensorSpec> specs = LayoutOfExpert(config, parsed.layer, parsed.expert);
      Check(specs[static_cast<size_t>(parsed.part)], entry.dtype, entry.shape,
            c_.files_[shard]->path());
    }
    const size_t i = PartIndex(parsed.layer, parsed.expert, parsed.part);
    part_offsets_[i] = entry.offset;
    part_shards_[i] = shard;
  }

  size_t PartIndex(int64_t layer, int64_t expert, int part) const {
    return static_cast<size_t>((layer * c_.config_.num_experts + expert) * kExpertParts + part);
  }

  void CheckSpineComplete() const {
    if (c_.spine_.size() == expected_.size()) return;
    for (const auto& [name, spec] : expected_) {
      if (c_.spine_.contains(name)) continue;
      throw Error(ErrorCode::kNotFound,
                  format("{}: tensor {} is in no shard, expected {}; {} of {} spine tensors are "
                         "there",
                         index_path_, name, Expected(spec), c_.spine_.size(), expected_.size()));
    }
  }

  void CheckExperts() {
    const ModelConfig& config = c_.config_;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      if (!config.IsMoe(layer)) continue;
      for (int64_t expert = 0; expert < config.num_experts; ++expert) CheckExpert(layer, expert);
    }
  }

  void CheckExpert(int64_t layer, int64_t expert) {
    const size_t first = PartIndex(layer, expert, 0);
    for (int part = 0; part < kExpertParts; ++part) {
      const size_t i = first + static_cast<size_t>(part);
      auto spec = [&] {
        return LayoutOfExpert(c_.config_, layer, expert)[static_cast<size_t>(part)];
      };
      if (part_offsets_[i] == kNowhere) {
        throw Error(ErrorCode::kNotFound, format("{}: tensor {} is in no shard, expected {}",
                                                 index_path_, spec().name, Expected(spec())));
      }
      const uint64_t want = part_offsets_[first] + c_.expert_part_begins_[part];
      if (part_offsets_[i] == want && part_shards_[i] == part_shards_[first]) continue;
      throw Error(
          ErrorCode::kCorrupt,
          format("{}: tensor {} lies at byte {} of shard {}, expected byte {} of shard {}: the six "
                 "tensors of an expert must lie back to back in the order w1, w2, w3 (packed, "
                 "scale)",
                 c_.files_[part_shards_[i]]->path(), spec().name, part_offsets_[i],
                 part_shards_[i] + 1, want, part_shards_[first] + 1));
    }
    c_.expert_spans_[first / kExpertParts] = {part_shards_[first], part_offsets_[first],
                                              c_.expert_bytes_};
  }

  FileSystem& fs_;
  Checkpoint& c_;
  std::string index_path_;
  std::map<std::string, TensorSpec, std::less<>> expected_;  // the spine
  std::vector<TensorSpec> expert_specs_;  // of any expert: only names differ; empty without MoE
  std::vector<uint64_t> part_offsets_;    // [num_layers, num_experts, kExpertParts]
  std::vector<uint32_t> part_shards_;
};

std::unique_ptr<Checkpoint> Checkpoint::Open(FileSystem& fs, const std::string& dir) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->dir_ = dir;
  Opener(fs, *checkpoint).Run();
  return checkpoint;
}

Extent Checkpoint::Find(const TensorSpec& spec) const {
  const auto it = spine_.find(spec.name);
  if (it == spine_.end()) {
    throw Error(ErrorCode::kNotFound, format("{}: there is no spine tensor {}", dir_, spec.name));
  }
  const Located& located = it->second;
  Check(spec, located.dtype, located.shape, files_[located.extent.shard]->path());
  return located.extent;
}

Extent Checkpoint::ExpertSpan(int64_t layer, int64_t expert) const {
  DF_CHECK(0 <= layer && layer < config_.num_layers && config_.IsMoe(layer));
  DF_CHECK(0 <= expert && expert < config_.num_experts);
  return expert_spans_[static_cast<size_t>(layer * config_.num_experts + expert)];
}

ExpertWeights Checkpoint::ViewExpert(const std::byte* span) const {
  auto part = [&](int packed, int64_t rows, int64_t cols) {
    return Matrix{WeightFormat::kMxfp4, rows, cols, span + expert_part_begins_[packed],
                  span + expert_part_begins_[packed + 1]};
  };
  const int64_t width = config_.moe_intermediate_size;
  const int64_t latent = config_.latent_size;
  ExpertWeights weights;
  weights.w1 = part(0, width, latent);
  weights.w2 = part(2, latent, width);
  weights.w3 = part(4, width, latent);
  return weights;
}

}  // namespace deltafin
