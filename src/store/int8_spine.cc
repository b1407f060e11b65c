#include "store/int8_spine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/json.h"
#include "io/hash.h"
#include "io/read_queue.h"
#include "store/spine_reader.h"

namespace deltafin {
namespace {

constexpr char kSpineMagic[] = "DFSPINE8";
constexpr uint32_t kVersion = 1;
constexpr size_t kHashAt = kInt8HeaderBytes - sizeof(uint64_t);
constexpr uint64_t kSampleBytes = 4096;
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 20;
constexpr char kManifestFormat[] = "deltafin spine int8";

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kReadAlignment - 1) / kReadAlignment * kReadAlignment;
}

// Little-endian fields one after the other.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(out) {}
  void U32(uint64_t value) { Put(value, 4); }
  void U64(uint64_t value) { Put(value, 8); }

 private:
  void Put(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_->push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  std::string* out_;
};

uint64_t ReadU64(const std::string& bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Places of what Int8Header writes.
constexpr size_t kFingerprintAt = 16;
constexpr size_t kScalesHashAt = 56;
constexpr size_t kPartsAt = 64;
constexpr size_t kPartBytes = 40;
constexpr size_t kPartHashAt = 32;

uint64_t HashOfText(const std::string& text) { return Xxh3(std::as_bytes(std::span(text))); }

std::string SourceName(const Checkpoint& checkpoint) {
  std::string all;
  FieldWriter out(&all);
  for (int64_t layer = 0; layer <= checkpoint.config().num_layers; ++layer) {
    out.U64(FingerprintOfLayer(checkpoint, layer));
  }
  return format("{:016x}", HashOfText(all));
}

}  // namespace

bool IsConvertedToInt8(SpineMatrix id) {
  return id != SpineMatrix::kRouter && id != SpineMatrix::kFaProj && id != SpineMatrix::kFbProj &&
         id != SpineMatrix::kBProj;
}

Int8LayerLayout LayoutOfInt8Layer(const ModelConfig& config, int64_t layer) {
  Int8LayerLayout layout;
  for (const MatrixSpec& spec : LayoutOfSpine(config, layer).matrices) {
    Int8LayerLayout::Part& part = layout.parts.emplace_back();
    part.id = spec.id;
    part.format = IsConvertedToInt8(spec.id) ? WeightFormat::kInt8 : WeightFormat::kBf16;
    part.rows = spec.tensor.shape.dims[0];
    part.cols = spec.tensor.shape.dims[1];
    part.first_scale = layout.num_scales;
    if (part.format == WeightFormat::kInt8) layout.num_scales += part.rows;
  }
  layout.scales_offset = kInt8HeaderBytes;
  uint64_t next = Aligned(kInt8HeaderBytes + static_cast<uint64_t>(layout.num_scales) * 4);
  for (Int8LayerLayout::Part& part : layout.parts) {
    part.offset = next;
    const int64_t value_bytes = part.format == WeightFormat::kInt8 ? 1 : 2;
    next += Aligned(static_cast<uint64_t>(part.rows * part.cols * value_bytes));
  }
  layout.file_bytes = next;
  return layout;
}

std::string Int8SpineFolder(const std::string& model_dir) {
  return JoinPath(model_dir, ".deltafin/spine-int8");
}

std::string Int8LayerPath(const std::string& model_dir, const ModelConfig& config, int64_t layer) {
  const std::string name = layer == config.num_layers ? "top" : format("layer-{:03}", layer);
  return JoinPath(Int8SpineFolder(model_dir), name);
}

std::string Int8ManifestPath(const std::string& model_dir) {
  return JoinPath(Int8SpineFolder(model_dir), "manifest.json");
}

uint64_t FingerprintOfLayer(const Checkpoint& checkpoint, int64_t layer) {
  std::string text;
  const LayerLayout layout = LayoutOfSpine(checkpoint.config(), layer);
  for (const MatrixSpec& spec : layout.matrices) {
    const Extent extent = checkpoint.Find(spec.tensor);
    text += format("{} {} {} {} {} {}\n", spec.tensor.name, DTypeName(spec.tensor.dtype),
                   ShapeName(spec.tensor.shape), extent.offset, extent.bytes,
                   checkpoint.file(extent.shard).size());
  }
  // Another revision of the weights has the same places: look at some of them.
  const Extent extent = checkpoint.Find(layout.matrices.front().tensor);
  std::string sample(std::min(extent.bytes, kSampleBytes), '\0');
  checkpoint.file(extent.shard)
      .ReadAt(extent.offset + (extent.bytes - sample.size()) / 2,
              std::as_writable_bytes(std::span(sample)));
  return HashOfText(text + sample);
}

std::string Int8Header(const Int8LayerLayout& layout, int64_t layer, uint64_t fingerprint,
                       const Int8LayerHashes& hashes) {
  std::string header(kSpineMagic);
  FieldWriter out(&header);
  out.U32(kVersion);
  out.U32(static_cast<uint64_t>(layer));
  out.U64(fingerprint);
  out.U64(layout.file_bytes);
  out.U64(layout.parts.size());
  out.U64(layout.scales_offset);
  out.U64(static_cast<uint64_t>(layout.num_scales));
  out.U64(hashes.scales);
  DF_CHECK(header.size() == kPartsAt && hashes.parts.size() == layout.parts.size());
  for (size_t i = 0; i < layout.parts.size(); ++i) {
    const Int8LayerLayout::Part& part = layout.parts[i];
    out.U64(part.format == WeightFormat::kInt8 ? 1 : 0);
    out.U64(static_cast<uint64_t>(part.rows));
    out.U64(static_cast<uint64_t>(part.cols));
    out.U64(part.offset);
    out.U64(hashes.parts[i]);
  }
  DF_CHECK(header.size() <= kHashAt);
  header.resize(kHashAt);
  out.U64(HashOfText(header));
  return header;
}

Int8LayerHashes ReadInt8Header(const std::string& model_dir, const ReadableFile& file,
                               const Int8LayerLayout& layout, int64_t layer, uint64_t fingerprint,
                               bool* matches_source) {
  if (file.size() != layout.file_bytes) {
    throw DamagedInt8Spine(model_dir, file.path(),
                           format("it has {} bytes, expected {}", file.size(), layout.file_bytes));
  }
  std::string header(kInt8HeaderBytes, '\0');
  file.ReadAt(0, std::as_writable_bytes(std::span(header)));
  Int8LayerHashes hashes;
  hashes.scales = ReadU64(header, kScalesHashAt);
  for (size_t i = 0; i < layout.parts.size(); ++i) {
    hashes.parts.push_back(ReadU64(header, kPartsAt + i * kPartBytes + kPartHashAt));
  }
  // Everything but the fingerprint and the hashes follows from the configuration.
  const uint64_t found = ReadU64(header, kFingerprintAt);
  if (header != Int8Header(layout, layer, found, hashes)) {
    throw DamagedInt8Spine(model_dir, file.path(),
                           format("its header is not that of layer {} of this model", layer));
  }
  *matches_source = found == fingerprint;
  return hashes;
}

std::string Int8Manifest(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  uint64_t bytes = 0;
  for (int64_t layer = 0; layer <= config.num_layers; ++layer) {
    bytes += LayoutOfInt8Layer(config, layer).file_bytes;
  }
  const Json manifest = {{"format", kManifestFormat},
                         {"version", kVersion},
                         {"layers", config.num_layers + 1},
                         {"bytes", bytes},
                         {"source", SourceName(checkpoint)}};
  return manifest.dump(2) + "\n";
}

Int8SpineState FindInt8Spine(FileSystem& fs, const Checkpoint& checkpoint, std::string* why) {
  const std::string path = Int8ManifestPath(checkpoint.dir());
  const auto because = [&](Int8SpineState state, const std::string& reason) {
    if (why != nullptr) *why = reason;
    return state;
  };
  if (!fs.Exists(path)) {
    return because(Int8SpineState::kAbsent, fs.Exists(Int8SpineFolder(checkpoint.dir()))
                                                ? "the conversion is not complete"
                                                : "there is none");
  }
  if (ReadWholeFile(fs, path, kMaxManifestBytes) != Int8Manifest(checkpoint)) {
    return because(Int8SpineState::kStale,
                   path + " was made from other weights, or by another version");
  }
  return Int8SpineState::kComplete;
}

SpineSource OpenInt8Spine(FileSystem& fs, const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  SpineSource source;
  source.format = WeightFormat::kInt8;
  for (int64_t layer = 0; layer <= config.num_layers; ++layer) {
    const std::string path = Int8LayerPath(checkpoint.dir(), config, layer);
    if (!fs.Exists(path)) throw DamagedInt8Spine(checkpoint.dir(), path, "it is missing");
    source.files.push_back(fs.OpenForReading(path));
    const ReadableFile& file = *source.files.back();
    const Int8LayerLayout layout = LayoutOfInt8Layer(config, layer);
    bool matches = false;
    const Int8LayerHashes hashes = ReadInt8Header(checkpoint.dir(), file, layout, layer,
                                                  FingerprintOfLayer(checkpoint, layer), &matches);
    if (!matches) {
      throw DamagedInt8Spine(checkpoint.dir(), path, "it was made from other weights");
    }
    StoredLayer& stored = source.layers.emplace_back();
    stored.scales_file = &file;
    stored.scales_offset = layout.scales_offset;
    stored.num_scales = layout.num_scales;
    stored.scales_hash = hashes.scales;
    for (size_t i = 0; i < layout.parts.size(); ++i) {
      const Int8LayerLayout::Part& part = layout.parts[i];
      stored.matrices.push_back({part.id, part.format, part.rows, part.cols, &file, part.offset,
                                 part.first_scale, hashes.parts[i]});
    }
  }
  return source;
}

std::string ConvertCommand(const std::string& model_dir) {
  return format("deltafin convert spine --to int8 --model {}", model_dir);
}

Error DamagedInt8Spine(const std::string& model_dir, const std::string& path,
                       const std::string& problem) {
  return {ErrorCode::kCorrupt,
          format("{}: {}; delete this file and run: {}", path, problem, ConvertCommand(model_dir))};
}

}  // namespace deltafin
