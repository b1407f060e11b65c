// Making and checking the converted spine.
#include <algorithm>
#include <bit>
#include <cstring>
#include <future>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/page_memory.h"
#include "io/atomic_file.h"
#include "io/hash.h"
#include "io/read_queue.h"
#include "io/write_file.h"
#include "store/int8_spine.h"
#include "store/spine_reader.h"

namespace deltafin {
namespace {

// Of released weights that are in RAM at a time, twice: one block is read while the other is
// converted and written.
constexpr uint64_t kBlockBytes = uint64_t{16} << 20;
constexpr int64_t kRowsPerTask = 16;
constexpr uint16_t kMagnitude = 0x7fff;
constexpr uint16_t kFirstNotFinite = 0x7f80;

// Nearest integer, ties to even, for |x| below 2^22: adding 1.5 * 2^23 leaves no bit for a
// fraction.
float RoundToEven(float x) {
  constexpr float kShift = 12582912.0f;
  return (x + kShift) - kShift;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

bool IsZero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

void Report(const Int8ProgressSink& sink, const Int8Progress& progress) {
  if (sink && !sink(progress)) throw Error(ErrorCode::kCancelled, "stopped on request");
}

// Rows of one tensor of the checkpoint, block by block; the next block is read while the caller
// works on one.
class BlockReader {
 public:
  BlockReader(const ReadableFile& file, uint64_t offset, int64_t rows, uint64_t row_bytes)
      : file_(file),
        offset_(offset),
        rows_(rows),
        row_bytes_(row_bytes),
        step_(std::clamp<int64_t>(static_cast<int64_t>(kBlockBytes / row_bytes), 1, rows)),
        current_(ReadBufferBytes(static_cast<uint64_t>(step_) * row_bytes)),
        next_(current_.size()) {
    Start();
  }
  int64_t first_row() const { return first_row_; }
  int64_t num_rows() const { return num_rows_; }
  std::span<const std::byte> bytes() const {
    const uint64_t begin = OffsetOf(first_row_);
    return {current_.data() + begin % kReadAlignment, static_cast<size_t>(num_rows_) * row_bytes_};
  }

  // False after the last block. Throws Error when the read failed.
  bool Next() {
    if (!reading_.valid()) return false;
    reading_.get();
    std::swap(current_, next_);
    first_row_ = std::exchange(next_row_, next_row_ + Count());
    num_rows_ = next_row_ - first_row_;
    Start();
    return true;
  }

 private:
  int64_t Count() const { return std::min(step_, rows_ - next_row_); }
  uint64_t OffsetOf(int64_t row) const { return offset_ + static_cast<uint64_t>(row) * row_bytes_; }
  // Past the page cache, which would only push other programs out of memory.
  void Start() {
    if (next_row_ == rows_) return;
    const uint64_t begin = OffsetOf(next_row_);
    const size_t skip = begin % kReadAlignment;
    const size_t needed = skip + static_cast<size_t>(Count()) * row_bytes_;
    const size_t pages = (needed + kReadAlignment - 1) / kReadAlignment;
    const std::span<std::byte> dst(next_.data(), pages * kReadAlignment);
    reading_ = std::async(std::launch::async, [this, begin, skip, needed, dst] {
      if (file_.Holds(begin, needed - skip)) {
        file_.ReadDirect(begin - skip, dst, needed);
      } else {
        file_.ReadAt(begin, dst.subspan(skip, needed - skip));
      }
    });
  }

  const ReadableFile& file_;
  const uint64_t offset_;
  const int64_t rows_;
  const uint64_t row_bytes_;
  const int64_t step_;
  int64_t first_row_ = 0;
  int64_t num_rows_ = 0;
  int64_t next_row_ = 0;
  PageBuffer current_;
  PageBuffer next_;
  std::future<void> reading_;  // last: its destructor waits for a read into next_
};

class Converter {
 public:
  Converter(FileSystem& fs, const Checkpoint& checkpoint, ThreadPool& pool,
            const Int8ProgressSink& sink)
      : fs_(fs), checkpoint_(checkpoint), config_(checkpoint.config()), pool_(pool), sink_(sink) {}

  Int8Summary Run() {
    const std::string folder = Int8SpineFolder(checkpoint_.dir());
    MakeFolders(folder);
    const FolderLock lock(folder);
    std::vector<int64_t> missing;
    uint64_t missing_bytes = 0;
    for (int64_t layer = 0; layer <= config_.num_layers; ++layer) {
      const uint64_t bytes = LayoutOfInt8Layer(config_, layer).file_bytes;
      summary_.bytes += bytes;
      if (IsThere(layer)) {
        ++summary_.layers_kept;
        continue;
      }
      missing.push_back(layer);
      missing_bytes += bytes;
      for (const MatrixSpec& spec : LayoutOfSpine(config_, layer).matrices) {
        progress_.total_bytes += checkpoint_.Find(spec.tensor).bytes;
      }
    }
    // What a killed run left half written is overwritten, so its space counts as free.
    for (int64_t layer : missing) RemoveFile(PathOf(layer) + ".tmp");
    CheckDiskSpace(folder, std::min(missing_bytes, MostBytesOfShards()), FreeDiskBytes(folder));
    progress_.layers_done = summary_.layers_kept;
    progress_.num_layers = config_.num_layers + 1;
    Report(sink_, progress_);

    // While layers change there is no complete conversion.
    if (!missing.empty()) RemoveFile(Int8ManifestPath(checkpoint_.dir()));
    for (int64_t layer : missing) {
      ConvertLayer(layer);
      ++summary_.layers_written;
      ++progress_.layers_done;
      Report(sink_, progress_);
    }
    WriteFileAtomically(Int8ManifestPath(checkpoint_.dir()), Int8Manifest(checkpoint_));
    return summary_;
  }

 private:
  std::string PathOf(int64_t layer) const {
    return Int8LayerPath(checkpoint_.dir(), config_, layer);
  }

  // Where the shards have holes, zeros become holes again: two bytes that are there become one at
  // most, and every row has a scale.
  uint64_t MostBytesOfShards() const {
    uint64_t bytes = 0;
    for (uint32_t shard = 0; shard < checkpoint_.num_shards(); ++shard) {
      bytes += DiskBytesOf(checkpoint_.file(shard).path());
    }
    for (int64_t layer = 0; layer <= config_.num_layers; ++layer) {
      const Int8LayerLayout layout = LayoutOfInt8Layer(config_, layer);
      bytes += layout.scales_offset + static_cast<uint64_t>(layout.num_scales) * sizeof(float);
    }
    return bytes;
  }

  bool IsThere(int64_t layer) const {
    if (!fs_.Exists(PathOf(layer))) return false;
    bool matches = false;
    try {
      ReadInt8Header(checkpoint_.dir(), *fs_.OpenForReading(PathOf(layer)),
                     LayoutOfInt8Layer(config_, layer), layer,
                     FingerprintOfLayer(checkpoint_, layer), &matches);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kCorrupt) throw;
      return false;
    }
    return matches;
  }

  void ConvertLayer(int64_t layer) {
    const Int8LayerLayout layout = LayoutOfInt8Layer(config_, layer);
    const LayerLayout source = LayoutOfSpine(config_, layer);
    AtomicFile file(PathOf(layer));
    file.Resize(layout.file_bytes);
    std::vector<float> scales(static_cast<size_t>(layout.num_scales));
    Int8LayerHashes hashes;
    for (size_t i = 0; i < layout.parts.size(); ++i) {
      hashes.parts.push_back(
          ConvertMatrix(source.matrices[i].tensor, layout.parts[i], file, scales));
    }
    const auto scale_bytes = std::as_bytes(std::span(scales));
    hashes.scales = Xxh3(scale_bytes);
    file.WriteAt(layout.scales_offset, scale_bytes);
    file.WriteAt(
        0, BytesOf(Int8Header(layout, layer, FingerprintOfLayer(checkpoint_, layer), hashes)));
    file.Commit();
  }

  // Returns the hash of the rows written.
  uint64_t ConvertMatrix(const TensorSpec& tensor, const Int8LayerLayout::Part& part,
                         AtomicFile& file, std::vector<float>& scales) {
    const Extent extent = checkpoint_.Find(tensor);
    const ReadableFile& shard = checkpoint_.file(extent.shard);
    BlockReader blocks(shard, extent.offset, part.rows, static_cast<uint64_t>(part.cols) * 2);
    std::vector<int8_t> converted;
    Xxh3Stream hash;
    uint64_t at = part.offset;
    while (blocks.Next()) {
      std::span<const std::byte> out = blocks.bytes();
      if (part.format == WeightFormat::kInt8) {
        converted.resize(static_cast<size_t>(blocks.num_rows() * part.cols));
        float* block_scales = scales.data() + part.first_scale + blocks.first_row();
        const int64_t bad_row = Quantize(blocks, part.cols, converted.data(), block_scales);
        if (bad_row >= 0) {
          throw Error(ErrorCode::kCorrupt,
                      format("{}: tensor {} has a weight that is not finite in row {}; the shard "
                             "is damaged, fetch it again",
                             shard.path(), tensor.name, blocks.first_row() + bad_row));
        }
        out = std::as_bytes(std::span(converted));
      }
      hash.Update(out);
      if (!IsZero(out)) file.WriteAt(at, out);
      at += out.size();
      progress_.bytes_done += blocks.bytes().size();
      Report(sink_, progress_);
    }
    return hash.Digest();
  }

  // QuantizeRows on all threads.
  int64_t Quantize(const BlockReader& blocks, int64_t cols, int8_t* out, float* scales) {
    const auto* bf16 = reinterpret_cast<const uint16_t*>(blocks.bytes().data());
    std::vector<int64_t> bad_rows(static_cast<size_t>(blocks.num_rows() / kRowsPerTask + 1), -1);
    pool_.ParallelFor(blocks.num_rows(), kRowsPerTask, [&](int64_t begin, int64_t end) {
      const int64_t bad =
          QuantizeRows(bf16 + begin * cols, end - begin, cols, out + begin * cols, scales + begin);
      if (bad >= 0) bad_rows[static_cast<size_t>(begin / kRowsPerTask)] = begin + bad;
    });
    for (int64_t bad : bad_rows) {
      if (bad >= 0) return bad;
    }
    return -1;
  }

  FileSystem& fs_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ThreadPool& pool_;
  const Int8ProgressSink& sink_;
  Int8Progress progress_;
  Int8Summary summary_;
};

}  // namespace

int64_t QuantizeRows(const uint16_t* bf16, int64_t rows, int64_t cols, int8_t* out, float* scales) {
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t* w = bf16 + row * cols;
    int8_t* q = out + row * cols;
    // Magnitudes are ordered like the bits without the sign, infinities and NaNs last.
    uint16_t largest = 0;
    for (int64_t i = 0; i < cols; ++i) {
      largest = std::max(largest, static_cast<uint16_t>(w[i] & kMagnitude));
    }
    if (largest >= kFirstNotFinite) return row;
    const float scale = std::bit_cast<float>(uint32_t{largest} << 16) / 127.0f;
    scales[row] = scale;
    if (scale == 0) {
      std::memset(q, 0, static_cast<size_t>(cols));
      continue;
    }
    for (int64_t i = 0; i < cols; ++i) {
      const float value = std::bit_cast<float>(uint32_t{w[i]} << 16);
      // A subnormal scale is coarse: the quotient may then exceed 127.
      const float quotient = std::min(127.0f, std::max(-127.0f, value / scale));
      q[i] = static_cast<int8_t>(static_cast<int32_t>(RoundToEven(quotient)));
    }
  }
  return -1;
}

void CheckDiskSpace(const std::string& folder, uint64_t needed_bytes, uint64_t free_bytes) {
  // Room for the file system's own records.
  const uint64_t wanted = needed_bytes + needed_bytes / 100 + (uint64_t{1} << 20);
  if (needed_bytes == 0 || wanted <= free_bytes) return;
  throw Error(
      ErrorCode::kIo,
      format("{}: the int8 spine takes {:.2f} GB more and the disk has {:.2f} GB free; free "
             "{:.2f} GB and run the command again",
             folder, static_cast<double>(wanted) / 1e9, static_cast<double>(free_bytes) / 1e9,
             static_cast<double>(wanted - free_bytes) / 1e9));
}

Int8Summary WriteInt8Spine(FileSystem& fs, const Checkpoint& checkpoint, ThreadPool& pool,
                           const Int8ProgressSink& progress) {
  return Converter(fs, checkpoint, pool, progress).Run();
}

Int8Summary CheckInt8Spine(FileSystem& fs, const Checkpoint& checkpoint,
                           const Int8ProgressSink& progress) {
  std::string why;
  if (FindInt8Spine(fs, checkpoint, &why) != Int8SpineState::kComplete) {
    throw Error(ErrorCode::kNotFound, format("no int8 spine to verify: {}; run: {}", why,
                                             ConvertCommand(checkpoint.dir())));
  }
  const SpineSource source = OpenInt8Spine(fs, checkpoint);
  Int8Summary summary;
  Int8Progress done;
  done.num_layers = checkpoint.config().num_layers + 1;
  done.total_bytes = source.TotalBytes();
  for (int64_t layer = 0; layer < done.num_layers; ++layer) {
    const StoredLayer& stored = source.layers[static_cast<size_t>(layer)];
    const ReadableFile& file = *stored.scales_file;
    const auto check = [&](const std::string& what, uint64_t offset, uint64_t bytes,
                           uint64_t expected) {
      const uint64_t hash = Xxh3OfRange(file, offset, bytes);
      if (hash != expected) {
        throw DamagedInt8Spine(
            checkpoint.dir(), file.path(),
            format("{} the checksum {:016x}, expected {:016x}", what, hash, expected));
      }
      done.bytes_done += bytes;
      Report(progress, done);
    };
    check("its scales have", stored.scales_offset, static_cast<uint64_t>(stored.num_scales) * 4,
          stored.scales_hash);
    for (size_t m = 0; m < stored.matrices.size(); ++m) {
      check(format("matrix {} has", m), stored.matrices[m].offset, stored.matrices[m].bytes(),
            *stored.matrices[m].hash);
    }
    summary.bytes += file.size();
    ++summary.layers_kept;
    ++done.layers_done;
  }
  return summary;
}

}  // namespace deltafin
