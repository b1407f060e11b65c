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
  state_.Reserve(num_tokens);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!is_mla(layer)) continue;
    const LatentCacheView cache = state_.cache(layer);
    const auto at = [&](int64_t token) {
      return static_cast<std::byte*>(cache.pages[token / cache.page_tokens]) +
             static_cast<size_t>(token % cache.page_tokens) * token_bytes;
    };
    for (int64_t token = period; token < num_tokens; ++token) {
      engine_.device().Copy(at(token), at(token % period), token_bytes);
    }
  }
  state_.Advance(num_tokens - period);
  for (int64_t token = period; token < num_tokens; ++token) {
    tokens_.push_back(tokens_[static_cast<size_t>(token - period)]);
  }
}

}  // namespace deltafin
