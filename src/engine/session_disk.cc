// Sessions that outlive the process.
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "engine/request_checks.h"
#include "engine/session_file.h"
#include "engine/session_impl.h"
#include "io/atomic_file.h"
#include "store/model_identity.h"

namespace deltafin {

const SessionOrigin& EngineImpl::session_origin() {
  std::call_once(origin_once_, [this] {
    origin_ = {IdentityOf(RealFileSystem(), *checkpoint_), options_.cache_format,
               spine_format_ == WeightFormat::kInt8 ? "int8" : "bf16"};
  });
  return origin_;
}

void SessionImpl::SaveTo(const std::string& path, const std::string& note) const {
  CheckUsable();
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) MakeFolders(folder);
  WriteSessionFile(path,
                   {engine_.session_origin(), static_cast<int64_t>(first_generated_), tokens_,
                    last_logits_, note},
                   state_, Durability::kSynced);
}

std::string SessionImpl::RestoreFrom(const std::string& path) {
  const SessionReader reader(path);
  const SessionContent& content = reader.content();
  CheckSameOrigin(path, content.origin, engine_.session_origin());
  const int64_t total = std::ssize(content.tokens);
  if (total > engine_.info().context_tokens) {
    throw Error(ErrorCode::kOutOfMemory,
                format("{}: its {} tokens do not fit the context of {} that the memory plan has "
                       "room for; pass a larger --context",
                       path, total, engine_.info().context_tokens));
  }
  CheckTokenIds(content.tokens, engine_.info());
  const bool was_usable = std::exchange(usable_, false);  // until all of it is there
  try {
    reader.ReadState(state_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) usable_ = was_usable;  // nothing has changed
    throw;
  }
  CheckStateIsOfText(path, content);
  tokens_ = content.tokens;
  first_generated_ = static_cast<size_t>(content.first_generated);
  last_logits_ = content.last_logits;
  usable_ = true;
  if (speculation_ != nullptr) speculation_->Reset();
  return content.note;
}

// Where the text ends with the state, the logits say how it goes on.
void SessionImpl::CheckStateIsOfText(const std::string& path, const SessionContent& content) const {
  const int64_t total = std::ssize(content.tokens);
  const int64_t known = state_.num_tokens();
  const bool ends = known == total && total > 0;
  const int64_t num_logits = std::ssize(content.last_logits);
  if (known <= total && (num_logits == engine_.info().vocab_size || (num_logits == 0 && !ends))) {
    return;
  }
  throw Error(ErrorCode::kCorrupt,
              format("{}: its state knows {} tokens of a text of {}, with {} logits, expected no "
                     "more than the text and {} logits; it is no session that can be continued",
                     path, known, total, num_logits, engine_.info().vocab_size));
}

}  // namespace deltafin
