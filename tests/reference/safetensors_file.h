// Reads a safetensors file for tests. Shares nothing with src/io.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltafin::reference {

using Vec = std::vector<double>;
// Name -> values, row-major.
using NamedTensors = std::map<std::string, Vec>;

struct Tensor {
  std::string dtype;  // "F64", "F32", "BF16", "I32", "I16", "U8"
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  int64_t size() const;  // elements
  // Every dtype above widens exactly.
  Vec ToDoubles() const;
};

// Throws std::runtime_error when the file cannot be read or its framing is wrong (spec 2.1).
std::map<std::string, Tensor> ReadSafetensors(const std::string& path);

}  // namespace deltafin::reference
