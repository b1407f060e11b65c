#include "saved_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace deltafin {
namespace {

// Tokens between two saves: as many as keep saving under a tenth of the time.
constexpr int64_t kMinPart = 8;
constexpr int64_t kMaxPart = 64;
constexpr double kSavingShare = 0.1;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void AddPart(const GenerateResult& part, GenerateResult* whole) {
  whole->tokens.insert(whole->tokens.end(), part.tokens.begin(), part.tokens.end());
  whole->logprobs.insert(whole->logprobs.end(), part.logprobs.begin(), part.logprobs.end());
  whole->finish_reason = part.finish_reason;
  whole->drafted_tokens += part.drafted_tokens;
  whole->accepted_tokens += part.accepted_tokens;
  whole->draft_passes += part.draft_passes;
  whole->decode_seconds += part.prefill_seconds + part.decode_seconds;
}

}  // namespace

void AddSessionFlags(CLI::App& command, SessionFlags* flags) {
  command
      .add_option("--session", flags->name,
                  "Keep the conversation under this name and go on with it if there is one; "
                  "without a prompt an answer that was cut off goes on")
      ->type_name("NAME");
  command
      .add_option("--session-dir", flags->folder,
                  "Folder of saved sessions (default: .deltafin/sessions in the model's folder)")
      ->type_name("DIR");
}

SavedRun::SavedRun(const SessionFlags& flags, const std::string& model_dir)
    : folder_(flags.folder.empty() ? DefaultSessionFolder(model_dir) : flags.folder),
      name_(flags.name),
      path_(SessionPath(folder_, name_)),
      exists_(SessionExists(folder_, name_)) {}

void SavedRun::Own() {
  lock_.emplace(folder_, name_);
  if (SessionExists(folder_, name_) == exists_) return;
  throw Error(ErrorCode::kIo, path_ +
                                  ": another process has just saved or removed it; look at it "
                                  "(deltafin sessions list) before you go on");
}

void SavedRun::Restore(Session& session) {
  note = SessionNote::Parse(session.RestoreFrom(path_), path_);
}

void SavedRun::Save(const Session& session) const { session.SaveTo(path_, note.Text()); }

GenerateResult SavedRun::Generate(Session& session, std::span<const TokenId> prompt,
                                  const GenerateOptions& options) const {
  GenerateResult whole;
  GenerateOptions reading = options;
  reading.max_new_tokens = 0;
  auto saved = std::chrono::steady_clock::now();
  double save_seconds = 0;
  const auto save = [&] {
    const auto start = std::chrono::steady_clock::now();
    Save(session);
    save_seconds = SecondsSince(start);
    saved = std::chrono::steady_clock::now();
  };
  reading.on_prefill_pass = [&] {
    if (save_seconds <= kSavingShare * SecondsSince(saved)) save();
  };
  // Without a prompt: what is left of one that was cut off, if anything.
  whole = session.Generate(prompt, reading);
  if (whole.finish_reason == FinishReason::kCancelled) return whole;  // in the middle of a pass
  if (!prompt.empty()) save();
  GenerateOptions part = options;
  part.on_progress = nullptr;
  part.cancelled = nullptr;  // a pass that is cut off cannot be saved; on_token stops after it
  int64_t part_tokens = kMinPart;
  for (;;) {
    const int64_t left = options.max_new_tokens - std::ssize(whole.tokens);
    part.max_new_tokens = std::min(left, part_tokens);
    const GenerateResult result = session.Generate({}, part);
    AddPart(result, &whole);
    save();
    const int64_t count = std::ssize(result.tokens);
    // A full context ends a part early.
    if (result.finish_reason != FinishReason::kLength || count < part_tokens) return whole;
    const double token_seconds = std::max(1e-9, result.decode_seconds / static_cast<double>(count));
    const double wanted = std::ceil(save_seconds / (kSavingShare * token_seconds));
    part_tokens = static_cast<int64_t>(
        std::clamp(wanted, static_cast<double>(kMinPart), static_cast<double>(kMaxPart)));
  }
}

}  // namespace deltafin
