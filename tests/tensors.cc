#include "tensors.h"

#include <limits>
#include <stdexcept>

#include "deltafin/json.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace deltafin {
namespace {

template <class T>
std::vector<double> Convert(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

std::vector<double> ToDoubles(DType dtype, const std::vector<std::byte>& bytes) {
  switch (dtype) {
    case DType::kF64:
      return Convert<double>(bytes);
    case DType::kF32:
      return Convert<float>(bytes);
    case DType::kI32:
      return Convert<int32_t>(bytes);
    case DType::kU8:
      return Convert<uint8_t>(bytes);
    default:
      throw std::runtime_error("fixture with an unexpected dtype: " +
                               std::string(DTypeName(dtype)));
  }
}

}  // namespace

std::vector<std::byte> Tensor::bytes() const {
  std::vector<std::byte> result;
  for (double value : data) result.push_back(static_cast<std::byte>(static_cast<int>(value)));
  return result;
}

Tensors Tensors::FromSafetensors(const std::string& path, const std::string& name_of_case) {
  const auto file = RealFileSystem().OpenForReading(path);
  const SafetensorsHeader header = SafetensorsHeader::Read(*file);
  Tensors tensors;
  for (size_t i = 0; i < header.size(); ++i) {
    const std::string name(header.name(i));
    if (!name.starts_with(name_of_case + ".")) continue;
    const TensorEntry& entry = header.entry(i);
    std::vector<std::byte> bytes(entry.bytes);
    file->ReadAt(entry.offset, bytes);
    tensors.Add(
        name.substr(name_of_case.size() + 1),
        {{entry.shape.dims, entry.shape.dims + entry.shape.rank}, ToDoubles(entry.dtype, bytes)});
  }
  return tensors;
}

Tensors Tensors::FromJson(const std::string& path) {
  const std::string text = ReadWholeFile(RealFileSystem(), path, uint64_t{1} << 30);
  const Json document = ParseJson(text, path);
  Tensors tensors;
  for (const auto& [name, value] : document.items()) {
    if (value.is_object() && value.contains("shape")) {
      tensors.Add(name, {value["shape"].get<std::vector<int64_t>>(),
                         value["data"].get<std::vector<double>>()});
    } else if (value.is_number()) {
      tensors.Add(name, {{}, {value.get<double>()}});
    }
  }
  return tensors;
}

const Tensor& Tensors::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error("the fixture has no tensor " + name);
  return found->second;
}

OwnedMatrix Tensors::MatrixF32(const std::string& name) const {
  const Tensor& tensor = (*this)[name];
  const int64_t cols = tensor.shape.back();
  OwnedMatrix matrix = MakeMatrix(WeightFormat::kF32, tensor.size() / cols, cols);
  const std::vector<float> values = tensor.floats();
  std::memcpy(matrix.data.data(), values.data(), values.size() * sizeof(float));
  return matrix;
}

OwnedMatrix Tensors::MatrixMxfp4(const std::string& packed, const std::string& scales,
                                 int64_t index) const {
  const Tensor& codes = (*this)[packed];
  const size_t rank = codes.shape.size();
  OwnedMatrix matrix =
      MakeMatrix(WeightFormat::kMxfp4, codes.dim(rank - 2), 2 * codes.dim(rank - 1));
  const auto data_bytes = static_cast<size_t>(matrix.view.rows * matrix.view.row_bytes());
  const size_t scale_bytes = ScaleBytes(matrix.view);
  std::memcpy(matrix.data.data(), codes.bytes().data() + static_cast<size_t>(index) * data_bytes,
              data_bytes);
  std::memcpy(matrix.scales.data(),
              (*this)[scales].bytes().data() + static_cast<size_t>(index) * scale_bytes,
              scale_bytes);
  return matrix;
}

void ExpectNear(const std::vector<float>& got, const Tensor& expected, Tolerance tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), expected.data.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - expected.data[i]);
    ASSERT_LE(error, tolerance.absolute + tolerance.relative * std::fabs(expected.data[i]))
        << what << ": element " << i << ": expected " << expected.data[i] << ", got " << got[i];
  }
}

}  // namespace deltafin
