// The shaders as the build compiled and embedded them (cmake/EmbedShaders.cmake).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace deltafin {

struct ShaderCode {
  std::string_view name;  // "product_bf16_1_fused"
  std::span<const uint32_t> words;
};

std::span<const ShaderCode> ShaderModules();

}  // namespace deltafin
