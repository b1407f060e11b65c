#include "io/safetensors.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/format.h"
#include "io/json_reader.h"
#include "io/quote.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;
constexpr uint64_t kLengthBytes = 8;

struct DTypeInfo {
  std::string_view name;
  int8_t bytes;
};

// In the order of DType.
constexpr DTypeInfo kDTypes[] = {
    {"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"I16", 2},     {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},     {"F64", 8}, {"I64", 8},
    {"U64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
};
constexpr size_t kNumDTypes = std::size(kDTypes);
static_assert(kNumDTypes == static_cast<size_t>(DType::kF8E8m0) + 1);

// Dtypes of the format whose size or layout nothing here can express.
constexpr std::string_view kUnsupportedDTypes[] = {"F4", "F6_E2M3", "F6_E3M2", "C64"};

std::optional<uint64_t> Multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The length in the first 8 bytes, checked against the size of the file.
uint64_t HeaderBytes(std::string_view first_bytes, uint64_t file_bytes, const std::string& name) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorCode::kCorrupt, format("{}: {}", name, problem));
  };
  if (first_bytes.size() < kLengthBytes || file_bytes < kLengthBytes) {
    fail(format("has {} bytes, expected at least the 8 of a safetensors header length",
                std::min<uint64_t>(first_bytes.size(), file_bytes)));
  }
  uint64_t bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes |= uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (bytes > kMaxHeaderBytes) {
    fail(format("header length {}, expected at most {}: not a safetensors file", bytes,
                kMaxHeaderBytes));
  }
  if (bytes > file_bytes - kLengthBytes) {
    fail(format("header length {}, but only {} bytes follow it: the file is truncated", bytes,
                file_bytes - kLengthBytes));
  }
  if (bytes < 2) fail(format("header length {}, expected at least the 2 of \"{{}}\"", bytes));
  return bytes;
}

// The tensors in the order of the header.
struct Listing {
  NameList names;
  std::vector<TensorEntry> entries;
};

// Reads the JSON and checks each tensor by itself.
class HeaderParser {
 public:
  HeaderParser(std::string_view json, uint64_t data_begin, uint64_t file_bytes,
               const std::string& name)
      : json_(json), reader_(json, name), data_begin_(data_begin), file_bytes_(file_bytes) {}

  Listing Parse() {
    bool has_metadata = false;
    if (!json_.starts_with('{')) reader_.Fail("expected a header that begins with '{'");
    reader_.BeginObject();
    while (reader_.NextKey(tensor_)) {
      if (tensor_ == "__metadata__") {
        if (std::exchange(has_metadata, true)) reader_.Fail("key \"__metadata__\" stands twice");
        SkipMetadata();
        continue;
      }
      reader_.set_subject([this] { return format("tensor {}", Quote(tensor_)); });
      out_.entries.push_back(ParseTensor());
      reader_.set_subject(nullptr);
      out_.names.Add(tensor_);
    }
    if (json_.find_first_not_of(' ', reader_.position()) != std::string_view::npos) {
      reader_.Fail("expected nothing but spaces after the header's object");
    }
    return std::move(out_);
  }

 private:
  // Strings by name.
  void SkipMetadata() {
    std::vector<std::string> keys;
    std::string key;
    std::string ignored;
    reader_.BeginObject();
    while (reader_.NextKey(key)) {
      reader_.ReadString(ignored);
      keys.push_back(key);
    }
    RefuseRepeatedKeys(keys, reader_);
  }

  TensorEntry ParseTensor() {
    std::optional<DType> dtype;
    std::optional<std::vector<uint64_t>> dims;
    std::optional<std::pair<uint64_t, uint64_t>> range;
    const auto once = [this](bool is_set, const std::string& field) {
      if (is_set) reader_.Fail(format("field {} stands twice", Quote(field)));
    };
    std::string field;
    reader_.BeginObject();
    while (reader_.NextKey(field)) {
      if (field == "dtype") {
        once(dtype.has_value(), field);
        dtype = ParseDType();
      } else if (field == "shape") {
        once(dims.has_value(), field);
        dims = ParseUints();
      } else if (field == "data_offsets") {
        once(range.has_value(), field);
        range = ParseRange();
      } else {
        reader_.Fail(
            format("unknown field {}, expected dtype, shape and data_offsets", Quote(field)));
      }
    }
    if (!dtype || !dims || !range) {
      reader_.Fail(format("expected dtype, shape and data_offsets, {} is missing",
                          !dtype ? "dtype" : (!dims ? "shape" : "data_offsets")));
    }
    return Checked(*dtype, *dims, range->first, range->second);
  }

  DType ParseDType() {
    std::string dtype;
    reader_.ReadString(dtype);
    for (size_t i = 0; i < kNumDTypes; ++i) {
      if (kDTypes[i].name == dtype) return static_cast<DType>(i);
    }
    if (std::find(std::begin(kUnsupportedDTypes), std::end(kUnsupportedDTypes), dtype) !=
        std::end(kUnsupportedDTypes)) {
      reader_.Fail(format("dtype {} is not supported", Quote(dtype)), ErrorCode::kUnsupported);
    }
    reader_.Fail(format("unknown dtype {}", Quote(dtype)));
  }

  std::vector<uint64_t> ParseUints() {
    std::vector<uint64_t> values;
    reader_.BeginArray();
    while (reader_.NextElement()) values.push_back(reader_.ReadUint());
    return values;
  }

  std::pair<uint64_t, uint64_t> ParseRange() {
    const std::vector<uint64_t> offsets = ParseUints();
    if (offsets.size() != 2) {
      reader_.Fail(format("expected two data_offsets, got {}", offsets.size()));
    }
    const uint64_t data_bytes = file_bytes_ - data_begin_;
    if (offsets[0] > offsets[1]) {
      reader_.Fail(format("data_offsets [{},{}] end before they begin", offsets[0], offsets[1]));
    }
    if (offsets[1] > data_bytes) {
      reader_.Fail(
          format("data_offsets [{},{}], but the file holds {} bytes of data: it is "
                 "truncated or its header is wrong",
                 offsets[0], offsets[1], data_bytes));
    }
    return {offsets[0], offsets[1]};
  }

  TensorEntry Checked(DType dtype, const std::vector<uint64_t>& dims, uint64_t begin,
                      uint64_t end) const {
    TensorEntry entry;
    entry.dtype = dtype;
    entry.offset = data_begin_ + begin;
    entry.bytes = end - begin;
    entry.shape.rank = dims.size() <= 4 ? static_cast<int8_t>(dims.size()) : int8_t{-1};
    std::optional<uint64_t> bytes = static_cast<uint64_t>(DTypeBytes(dtype));
    for (size_t i = 0; i < dims.size(); ++i) {
      if (bytes) bytes = Multiply(*bytes, dims[i]);
      if (!bytes || dims[i] > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        reader_.Fail(format("its shape has more bytes than a file can hold (dimension {} is {})", i,
                            dims[i]));
      }
      if (dims.size() <= 4) entry.shape.dims[i] = static_cast<int64_t>(dims[i]);
    }
    if (*bytes != entry.bytes) {
      reader_.Fail(format("shape {} of {} needs {} bytes, but data_offsets [{},{}] hold {}",
                          ShapeName(entry.shape), DTypeName(dtype), *bytes, begin, end,
                          entry.bytes));
    }
    return entry;
  }

  const std::string_view json_;
  JsonReader reader_;
  const uint64_t data_begin_;
  const uint64_t file_bytes_;
  std::string tensor_;
  Listing out_;
};

// The tensors must cover the data once, without a gap.
void CheckCover(const Listing& listing, uint64_t data_begin, uint64_t file_bytes,
                const std::string& name) {
  const auto end_of = [&](size_t i) {
    return listing.entries[i].offset + listing.entries[i].bytes;
  };
  std::vector<uint32_t> order(listing.entries.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(listing.entries[a].offset, end_of(a)) <
           std::pair(listing.entries[b].offset, end_of(b));
  });
  uint64_t expected = data_begin;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t begin = listing.entries[order[i]].offset;
    if (begin != expected) {
      throw Error(
          ErrorCode::kCorrupt,
          format("{}: tensor {}: begins at byte {} of the data, expected {}, {}: {}", name,
                 Quote(listing.names[order[i]]), begin - data_begin, expected - data_begin,
                 i == 0 ? "where the data begins"
                        : format("where tensor {} ends", Quote(listing.names[order[i - 1]])),
                 begin < expected ? "they overlap" : "there is a gap"));
    }
    expected = end_of(order[i]);
  }
  if (expected != file_bytes) {
    throw Error(ErrorCode::kCorrupt,
                format("{}: the tensors end at byte {}, expected the size of the file, {}", name,
                       expected, file_bytes));
  }
}

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

int64_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

std::string ShapeName(const TensorShape& shape) {
  if (shape.rank < 0) return "[more than 4 dimensions]";
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) {
    text += format("{}{}", i == 0 ? "" : ",", shape.dims[i]);
  }
  return text + "]";
}

SafetensorsHeader SafetensorsHeader::Read(const ReadableFile& file) {
  std::string head(std::min<uint64_t>(file.size(), kLengthBytes), '\0');
  file.ReadAt(0, std::as_writable_bytes(std::span(head)));
  head.resize(kLengthBytes + HeaderBytes(head, file.size(), file.path()));
  file.ReadAt(kLengthBytes, std::as_writable_bytes(std::span(head).subspan(kLengthBytes)));
  return Parse(head, file.size(), file.path());
}

SafetensorsHeader SafetensorsHeader::Parse(std::string_view head, uint64_t file_bytes,
                                           const std::string& name) {
  const uint64_t header_bytes = HeaderBytes(head, file_bytes, name);
  if (header_bytes > head.size() - kLengthBytes) {
    throw Error(ErrorCode::kCorrupt, format("{}: header of {} bytes, but only {} of them are there",
                                            name, header_bytes, head.size() - kLengthBytes));
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  const Listing listing =
      HeaderParser(head.substr(kLengthBytes, header_bytes), data_begin, file_bytes, name).Parse();
  CheckCover(listing, data_begin, file_bytes, name);

  SafetensorsHeader header;
  header.data_begin_ = data_begin;
  const std::vector<uint32_t> order = listing.names.SortedOrder();
  header.names_ = listing.names.InOrder(order);
  if (const auto repeated = header.names_.FindRepeated()) {
    throw Error(ErrorCode::kCorrupt, format("{}: tensor {} stands twice", name, Quote(*repeated)));
  }
  header.entries_.reserve(order.size());
  for (const uint32_t i : order) header.entries_.push_back(listing.entries[i]);
  return header;
}

const TensorEntry* SafetensorsHeader::Find(std::string_view tensor) const {
  const std::optional<size_t> i = names_.Find(tensor);
  return i ? &entries_[*i] : nullptr;
}

}  // namespace deltafin
