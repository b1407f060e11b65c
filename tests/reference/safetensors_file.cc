#include "reference/safetensors_file.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deltafin::reference {
namespace {

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));  // little-endian hosts only, like the files
  return value;
}

float WidenBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

int64_t ElementBytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> kBytes = {{"F64", 8}, {"F32", 4}, {"BF16", 2},
                                                        {"I32", 4}, {"I16", 2}, {"U8", 1}};
  const auto it = kBytes.find(dtype);
  if (it == kBytes.end()) throw std::runtime_error("dtype " + dtype + " is not known to the tests");
  return it->second;
}

double ElementAsDouble(const std::string& dtype, const uint8_t* bytes) {
  if (dtype == "F64") return Load<double>(bytes);
  if (dtype == "F32") return static_cast<double>(Load<float>(bytes));
  if (dtype == "BF16") return static_cast<double>(WidenBf16(Load<uint16_t>(bytes)));
  if (dtype == "I32") return Load<int32_t>(bytes);
  if (dtype == "I16") return Load<int16_t>(bytes);
  return *bytes;
}

}  // namespace

int64_t Tensor::size() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

Vec Tensor::ToDoubles() const {
  const int64_t width = ElementBytes(dtype);
  Vec values(static_cast<size_t>(size()));
  for (int64_t i = 0; i < size(); ++i) values[i] = ElementAsDouble(dtype, &bytes[i * width]);
  return values;
}

std::map<std::string, Tensor> ReadSafetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || file.size() < 8) throw std::runtime_error("cannot read " + path);
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
  const uint64_t header_bytes = Load<uint64_t>(bytes);
  if (header_bytes > file.size() - 8) throw std::runtime_error(path + ": header exceeds the file");
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  const uint64_t data_begin = 8 + header_bytes;

  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Tensor tensor;
    tensor.dtype = entry.at("dtype");
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    const uint64_t begin = entry.at("data_offsets").at(0);
    const uint64_t end = entry.at("data_offsets").at(1);
    if (begin > end || end > file.size() - data_begin ||
        static_cast<int64_t>(end - begin) != tensor.size() * ElementBytes(tensor.dtype)) {
      throw std::runtime_error(path + ": bad data_offsets of " + name);
    }
    tensor.bytes.assign(bytes + data_begin + begin, bytes + data_begin + end);
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

}  // namespace deltafin::reference
