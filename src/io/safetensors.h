// The safetensors container: u64 little-endian header length, a JSON header, then the data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/name_list.h"

namespace deltafin {

// The last three do not occur in K3.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
};

std::string_view DTypeName(DType dtype);  // as written in the header: "BF16"
int64_t DTypeBytes(DType dtype);

// Up to four dimensions, which is all that K3 uses.
struct TensorShape {
  int8_t rank = 0;  // -1: more than four, dims unknown; equals no shape that anyone asks for
  int64_t dims[4] = {};
};

std::string ShapeName(const TensorShape& shape);  // "[3072,1792]"

// Where one tensor lies in one file: [offset, offset + bytes) from the start of the file.
struct TensorEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  DType dtype = DType::kU8;
  TensorShape shape;
};

// The header of one file, sorted by name. Immutable, compact (names in one arena).
class SafetensorsHeader {
 public:
  // Parses and checks everything: lengths, dtype, shape x dtype == bytes, duplicates, ranges inside
  // the file, no overlap, no gap, data ending where the file ends. Throws Error(kCorrupt) naming
  // file, tensor, expected and got; Error(kUnsupported) for a dtype whose elements are not whole
  // bytes. Headers up to 256 MiB.
  static SafetensorsHeader Read(const ReadableFile& file);
  // The same for bytes in memory: `head` starts at byte 0 of a file of `file_bytes` bytes and holds
  // at least the whole header. `name` is used in messages.
  static SafetensorsHeader Parse(std::string_view head, uint64_t file_bytes,
                                 const std::string& name);

  size_t size() const { return entries_.size(); }
  std::string_view name(size_t i) const { return names_[i]; }
  const TensorEntry& entry(size_t i) const { return entries_[i]; }
  // Null when absent.
  const TensorEntry* Find(std::string_view name) const;
  // First byte of data: 8 + header length.
  uint64_t data_begin() const { return data_begin_; }

 private:
  NameList names_;  // sorted
  std::vector<TensorEntry> entries_;
  uint64_t data_begin_ = 0;
};

}  // namespace deltafin
