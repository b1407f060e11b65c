// Any bytes as a safetensors file: a header that holds what it promises, or an Error.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deltafin::SafetensorsHeader;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const SafetensorsHeader header = SafetensorsHeader::Parse(file, size, "fuzz");
    uint64_t data_bytes = 0;
    for (size_t i = 0; i < header.size(); ++i) {
      const deltafin::TensorEntry& entry = header.entry(i);
      DF_CHECK(entry.offset >= header.data_begin() && entry.offset <= size);
      DF_CHECK(entry.bytes <= size - entry.offset);
      DF_CHECK(header.Find(header.name(i)) == &entry);
      DF_CHECK(i == 0 || header.name(i - 1) < header.name(i));
      data_bytes += entry.bytes;
    }
    DF_CHECK(data_bytes == size - header.data_begin());
  } catch (const deltafin::Error&) {
  }
  return 0;
}
