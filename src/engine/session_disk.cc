// Sessions that outlive the process.
#include <filesystem>

#include "base/format.h"
#include "engine/session_file.h"
#include "engine/session_impl.h"
#include "io/write_file.h"
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
  if (!folder.empty()) MakeFolder(folder);
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
  try {
    reader.ReadState(state_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) usable_ = false;  // half of it is there
    throw;
  }
  tokens_ = content.tokens;
  first_generated_ = static_cast<size_t>(content.first_generated);
  last_logits_ = content.last_logits;
  usable_ = true;
  if (speculation_ != nullptr) speculation_->Reset();
  return content.note;
}

}  // namespace deltafin
