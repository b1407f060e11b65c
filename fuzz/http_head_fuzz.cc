// Any bytes as the head of a server's answer: judged without a crash.
#include <cstdint>
#include <string>
#include <string_view>

#include "hub/hub_url.h"
#include "hub/retry_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltafin;  // NOLINT(google-build-using-namespace)
  std::string_view text(reinterpret_cast<const char*>(data), size);
  HttpResponse response;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    TakeHeaderLine(text.substr(0, end), 1'700'000'000, &response);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  Asked asked;
  asked.range = ByteRange{100, 50};
  asked.file_bytes = 1000;
  const Judgement judgement = JudgeResponse(response, asked);
  // Nothing but the very range is taken for it.
  if (judgement.verdict == Verdict::kGood &&
      (response.status != 206 || response.content_range->first != 100 ||
       response.content_range->last != 149)) {
    __builtin_trap();
  }
  const std::string target = ResolveLocation("https://hub/a/b", response.location);
  if (!target.empty() && !target.starts_with("http")) __builtin_trap();
  return 0;
}
