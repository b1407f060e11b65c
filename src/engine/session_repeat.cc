// A long context without reading it: for measurements of what a token costs after it.
#include <algorithm>

#include "base/check.h"
#include "engine/session_impl.h"

namespace deltafin {

void SessionImpl::RepeatTo(int64_t num_tokens) {
  CheckUsable();
  const int64_t period = state_.num_tokens();
  DF_CHECK(pending() == 0 && period >= 1 && num_tokens >= period);
  DF_CHECK(num_tokens <= engine_.info().context_tokens);
  const ModelConfig& config = engine_.config();
  const int64_t value_bytes = state_.cache_format() == CacheFormat::kBf16 ? 2 : 4;
  const auto token_bytes =
      static_cast<size_t>((config.kv_lora_rank + config.qk_rope_head_dim) * value_bytes);
  DF_CHECK(period <= kCachePageTokens);
  state_.Reserve(num_tokens);
  std::vector<std::byte> once(static_cast<size_t>(period) * token_bytes);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!is_mla(layer)) continue;
    // A page at a time, as passes would write them.
    for (int64_t first = period; first < num_tokens;) {
      const int64_t page_end = (first / kCachePageTokens + 1) * kCachePageTokens;
      const int64_t end = std::min(page_end, num_tokens);
      const LatentCacheView cache = state_.BeginAppend(layer, first, end - first);
      const auto at = [&](int64_t token) {
        return static_cast<std::byte*>(cache.pages[token / cache.page_tokens]) +
               static_cast<size_t>(token % cache.page_tokens) * token_bytes;
      };
      // The first page is in memory as long as it is the only one.
      if (first == period) engine_.device().ToHost(once.data(), at(0), once.size());
      for (int64_t token = first; token < end; ++token) {
        const size_t from = static_cast<size_t>(token % period) * token_bytes;
        engine_.device().ToDevice(at(token), once.data() + from, token_bytes);
      }
      state_.EndAppend(layer, first, end - first);
      first = end;
    }
  }
  state_.Advance(num_tokens - period);
  for (int64_t token = period; token < num_tokens; ++token) {
    tokens_.push_back(tokens_[static_cast<size_t>(token - period)]);
  }
}

}  // namespace deltafin
