// The converted spine: int8 rows with one scale each, in files of their own (docs/formats.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "deltafin/error.h"
#include "io/file.h"
#include "store/checkpoint.h"
#include "store/spine_source.h"

namespace deltafin {

// Gates and the router stay bf16: together they are 0.7 % of a layer of the release, and what they
// decide (which expert, how fast a state decays) feeds on itself.
bool IsConvertedToInt8(SpineMatrix id);

// y[row, col] = round to nearest even (w / scale[row]), scale = max |w| / 127, all of it in fp32. A
// row whose scale is 0 (all zeros, or too small to divide by 127) becomes zeros. Returns the first
// row with a value that is not finite, or -1.
int64_t QuantizeRows(const uint16_t* bf16, int64_t rows, int64_t cols, int8_t* out, float* scales);

// One file: a header, the scales of its matrices, then the matrices in order of use. A function of
// the configuration alone.
struct Int8LayerLayout {
  struct Part {
    SpineMatrix id = SpineMatrix::kQProj;
    WeightFormat format = WeightFormat::kInt8;  // or kBf16: copied
    int64_t rows = 0;
    int64_t cols = 0;
    uint64_t offset = 0;
    int64_t first_scale = 0;
  };
  std::vector<Part> parts;
  uint64_t scales_offset = 0;
  int64_t num_scales = 0;
  uint64_t file_bytes = 0;
};
Int8LayerLayout LayoutOfInt8Layer(const ModelConfig& config, int64_t layer);

// What only the bytes tell.
struct Int8LayerHashes {
  uint64_t scales = 0;
  std::vector<uint64_t> parts;
};

std::string Int8SpineFolder(const std::string& model_dir);  // DIR/.deltafin/spine-int8
std::string Int8LayerPath(const std::string& model_dir, const ModelConfig& config, int64_t layer);
std::string Int8ManifestPath(const std::string& model_dir);

// Says from which bytes of the checkpoint a layer was made: names, places, shapes and the size of
// the shard, and a sample of the weights. Reads 4 KiB.
uint64_t FingerprintOfLayer(const Checkpoint& checkpoint, int64_t layer);

inline constexpr size_t kInt8HeaderBytes = 4096;
std::string Int8Header(const Int8LayerLayout& layout, int64_t layer, uint64_t fingerprint,
                       const Int8LayerHashes& hashes);
// The hashes in a layer's file. Throws DamagedInt8Spine when the file has another size or its
// header is not one; `matches_source` becomes false, and the hashes mean nothing, when the header
// is whole but made from other weights.
Int8LayerHashes ReadInt8Header(const std::string& model_dir, const ReadableFile& file,
                               const Int8LayerLayout& layout, int64_t layer, uint64_t fingerprint,
                               bool* matches_source);

// The manifest of a complete conversion.
std::string Int8Manifest(const Checkpoint& checkpoint);

enum class Int8SpineState : uint8_t {
  kAbsent,  // or not complete
  kStale,   // made from other weights than the checkpoint's
  kComplete,
};
// What the manifest says. `why` (optional) gets a reason for kAbsent and kStale.
Int8SpineState FindInt8Spine(FileSystem& fs, const Checkpoint& checkpoint, std::string* why);

// A conversion that is kComplete. Reads every header; throws Error(kCorrupt) when a file is missing
// or damaged. `checkpoint` must outlive the source.
SpineSource OpenInt8Spine(FileSystem& fs, const Checkpoint& checkpoint);

// "deltafin convert spine --to int8 --model DIR".
std::string ConvertCommand(const std::string& model_dir);
// Says which file is damaged and how to make it again.
Error DamagedInt8Spine(const std::string& model_dir, const std::string& path,
                       const std::string& problem);

// ---- conversion ----

struct Int8Progress {
  int64_t layers_done = 0;   // kept or written
  int64_t num_layers = 0;    // with the top
  uint64_t bytes_done = 0;   // of the released spine, or of the files when verifying
  uint64_t total_bytes = 0;  // of what this run has to do
};
// False cancels: Error(kCancelled).
using Int8ProgressSink = std::function<bool(const Int8Progress&)>;

struct Int8Summary {
  int64_t layers_written = 0;
  int64_t layers_kept = 0;
  uint64_t bytes = 0;  // of all files
};

// Writes what is missing: layers that are there, whole and made from these weights, are kept.
// Throws Error: no space on the disk (before anything is written), a failed read or write, a weight
// that is not finite, cancelled; what was finished stays and the next run goes on from there.
Int8Summary WriteInt8Spine(FileSystem& fs, const Checkpoint& checkpoint, ThreadPool& pool,
                           const Int8ProgressSink& progress);
// Reads all files and compares all checksums. Throws Error(kNotFound) when there is no conversion,
// Error(kCorrupt) naming the first file that is damaged.
Int8Summary CheckInt8Spine(FileSystem& fs, const Checkpoint& checkpoint,
                           const Int8ProgressSink& progress);

// Throws Error(kIo) when `needed` is more than `free`.
void CheckDiskSpace(const std::string& folder, uint64_t needed_bytes, uint64_t free_bytes);

}  // namespace deltafin
