// Any bytes as a chat request: a prompt or an Error, and control tokens only from the format
// itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "deltafin/chat.h"
#include "deltafin/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const deltafin::RenderedChat chat =
        deltafin::RenderChat({reinterpret_cast<const char*>(data), size});
    for (const deltafin::Segment& segment : chat.segments) {
      const bool is_mark = segment.text == "<|open|>" || segment.text == "<|close|>" ||
                           segment.text == "<|sep|>" || segment.text == "<|end_of_msg|>";
      if (segment.text.empty()) std::abort();
      if (segment.specials == deltafin::Specials::kAllowed && !is_mark) std::abort();
    }
  } catch (const deltafin::Error&) {  // a bad request
  }
  return 0;
}
