// Named tensors of a fixture, as doubles whatever the file says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/device_test_util.h"

namespace deltafin {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> data;

  int64_t size() const { return static_cast<int64_t>(data.size()); }
  int64_t dim(size_t i) const { return shape.at(i); }
  std::vector<float> floats() const { return {data.begin(), data.end()}; }
  std::vector<std::byte> bytes() const;
};

class Tensors {
 public:
  // The tensors "CASE.NAME" of a safetensors file, as NAME.
  static Tensors FromSafetensors(const std::string& path, const std::string& name_of_case);
  // {"NAME": {"shape": [...], "data": [...]}, ...}; numbers outside become tensors of rank 0.
  static Tensors FromJson(const std::string& path);

  // Fails the test, by exception, when the fixture has no such tensor.
  const Tensor& operator[](const std::string& name) const;
  double number(const std::string& name) const { return (*this)[name].data.at(0); }
  bool empty() const { return tensors_.empty(); }
  void Add(const std::string& name, Tensor tensor) { tensors_[name] = std::move(tensor); }

  // An f32 matrix; leading dimensions are rows.
  OwnedMatrix MatrixF32(const std::string& name) const;
  // Expert `index` of stacked MXFP4 weights [experts, rows, cols / 2] and scales, or the only one
  // of an unstacked pair.
  OwnedMatrix MatrixMxfp4(const std::string& packed, const std::string& scales,
                          int64_t index = 0) const;

 private:
  std::map<std::string, Tensor> tensors_;
};

// |got - expected| <= absolute + relative * |expected|, element by element.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};
void ExpectNear(const std::vector<float>& got, const Tensor& expected, Tolerance tolerance,
                const std::string& what);

}  // namespace deltafin
