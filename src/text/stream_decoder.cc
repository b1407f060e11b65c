#include "deltafin/tokenizer.h"
#include "text/utf8.h"

namespace deltafin {

std::string StreamDecoder::Push(std::string_view bytes) {
  pending_ += bytes;
  const std::string_view text = pending_;
  std::string out;
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = NextUtf8(text, pos);
    if (step.status == Utf8Status::kTruncated) break;
    out +=
        step.status == Utf8Status::kValid ? text.substr(pos, step.length) : kReplacementCharacter;
    pos += step.length;
  }
  pending_.erase(0, pos);
  return out;
}

std::string StreamDecoder::Finish() {
  // Push keeps back a single unfinished character at most.
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace deltafin
