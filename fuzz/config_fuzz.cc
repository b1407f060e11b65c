// Any bytes as a config.json: a configuration that can be used, or an Error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "deltafin/error.h"
#include "store/layout.h"
#include "store/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deltafin::ModelConfig;
  try {
    const ModelConfig config =
        ModelConfig::Parse({reinterpret_cast<const char*>(data), size}, "config.json");
    // What was accepted must give tensors whose sizes can be computed.
    for (const deltafin::LayerLayout& layout :
         {LayoutOfLayer(config, 0), LayoutOfLayer(config, config.num_layers - 1),
          LayoutOfTop(config)}) {
      for (const deltafin::MatrixSpec& matrix : layout.matrices) {
        if (deltafin::NumElements(matrix.tensor.shape) <= 0) std::abort();
      }
      for (const deltafin::VectorSpec& vector : layout.vectors) {
        if (vector.size <= 0) std::abort();
      }
    }
  } catch (const deltafin::Error&) {
  }
  return 0;
}
