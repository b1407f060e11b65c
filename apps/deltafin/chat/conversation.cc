#include "conversation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "../session_note.h"

namespace deltafin {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Add(const ChatDelta& delta, TurnResult* result) {
  result->reasoning += delta.reasoning;
  result->content += delta.content;
  // No tool is declared here, so a call is an answer of a strange kind.
  for (const ToolCall& call : delta.finished_calls) {
    result->content += "[call " + call.name + " " + call.arguments + "]";
  }
}

}  // namespace

Conversation::Conversation(Engine& engine, GenerateOptions generate)
    : engine_(engine), generate_(std::move(generate)), session_(engine.NewSession()) {}

void Conversation::SetSystem(const std::string& text) {
  system_is_said_ = system_is_said_ && text == system_;
  system_ = text;
}

void Conversation::SetEffort(ReasoningEffort effort) {
  effort_is_said_ = effort_is_said_ && effort == effort_;
  effort_ = effort;
}

void Conversation::Clear() {
  GoBack(nullptr);
  closing_.clear();
  lost_.clear();
  num_turns_ = 0;
  system_is_said_ = false;
  effort_is_said_ = false;
}

int64_t Conversation::num_tokens() const {
  return static_cast<int64_t>(session_->tokens().size() + lost_.size());
}

std::vector<TokenId> Conversation::Prompt(const std::string& question, bool* thinking) const {
  SimpleChat chat;
  chat.user = question;
  chat.thinking = effort_ != ReasoningEffort::kNone;
  chat.effort = effort_is_said_ ? ReasoningEffort::kNone : effort_;
  if (!system_is_said_) chat.system = system_;
  const RenderedChat rendered = RenderSimpleChat(chat);
  *thinking = rendered.thinking;
  std::vector<TokenId> prompt = closing_;
  const std::vector<TokenId> ids = rendered.Encode(engine_.tokenizer());
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  return prompt;
}

std::vector<TokenId> Conversation::Closing(std::span<const TokenId> answer) const {
  const std::vector<TokenId>& stops = engine_.stop_tokens();
  if (!answer.empty() && std::find(stops.begin(), stops.end(), answer.back()) != stops.end()) {
    return {};
  }
  const auto parser = ChatParser::Create(engine_.tokenizer(), thinking_);
  for (TokenId id : answer) (void)parser->Push(id);
  return parser->CloseMessage();
}

void Conversation::AppendPrompt(const std::vector<TokenId>& prompt,
                                const TurnCallbacks& callbacks) {
  const auto count = std::ssize(prompt);
  if (callbacks.on_prompt_layer) {
    session_->SetOnRouterPicks(
        [&](const RouterPicks& picks) { callbacks.on_prompt_layer(picks.layer, count); });
  }
  session_->Append(prompt, 0, nullptr, callbacks.stop.after_token);
  session_->SetOnRouterPicks({});  // an observer keeps the session from guessing ahead
}

void Conversation::GoBack(const Snapshot* before) {
  if (before != nullptr) return session_->Restore(*before);
  session_.reset();  // the plan has room for one
  session_ = engine_.NewSession();
}

void Conversation::LoseState() {
  lost_ = session_->tokens();
  closing_ = Closing(std::span(lost_).subspan(session_->first_generated()));
  GoBack(nullptr);
}

void Conversation::Rebuild(const TurnCallbacks& callbacks) {
  if (lost_.empty()) return;
  GoBack(nullptr);
  AppendPrompt(lost_, callbacks);
  lost_.clear();
}

TurnResult Conversation::Ask(const std::string& question, const TurnCallbacks& callbacks) {
  TurnResult result;
  bool thinking = true;
  const std::vector<TokenId> prompt = Prompt(question, &thinking);
  const int64_t context = engine_.info().context_tokens;
  if (num_tokens() + std::ssize(prompt) >= context) {
    throw Error(ErrorCode::kOutOfMemory,
                "the conversation's " + std::to_string(num_tokens()) +
                    " tokens and this question fill the context of " + std::to_string(context) +
                    "; /clear begins a new one, and --context plans for longer ones");
  }
  result.prompt_tokens = std::ssize(prompt);
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<Snapshot> before;  // in memory only until the answer begins
  try {
    Rebuild(callbacks);
    if (!session_->tokens().empty()) before = session_->Save();
    AppendPrompt(prompt, callbacks);
  } catch (const Error& error) {
    session_->SetOnRouterPicks({});
    GoBack(before.get());
    if (error.code() != ErrorCode::kCancelled) throw;
    result.finish_reason = FinishReason::kCancelled;
    result.withdrawn = true;
    return result;
  }
  before.reset();
  result.prefill_seconds = SecondsSince(start);
  closing_.clear();
  system_is_said_ = true;
  effort_is_said_ = true;
  thinking_ = thinking;
  ++num_turns_;

  const auto parser = ChatParser::Create(engine_.tokenizer(), thinking);
  const auto show = [&](const ChatDelta& delta) {
    Add(delta, &result);
    if (callbacks.on_delta) callbacks.on_delta(delta);
  };
  GenerateOptions options = generate_;
  if (options.max_new_tokens <= 0) options.max_new_tokens = context;
  bool ended_after_a_token = false;
  options.on_token = [&](TokenId id) {
    show(parser->Push(id));
    ended_after_a_token = callbacks.stop.after_token();
    return !ended_after_a_token;
  };
  options.cancelled = callbacks.stop.now;
  GenerateResult generated;
  try {
    generated = session_->Generate({}, options);
  } catch (const Error&) {  // a failed read, say
    LoseState();
    throw;
  }
  result.new_tokens = std::ssize(generated.tokens);
  result.decode_seconds = generated.decode_seconds;
  result.finish_reason = generated.finish_reason;
  if (generated.finish_reason == FinishReason::kCancelled && !ended_after_a_token) {
    LoseState();
  } else {
    closing_ = Closing(generated.tokens);
  }
  show(parser->Finish());
  return result;
}

void Conversation::Save(const std::string& path) const {
  if (!lost_.empty() || session_->tokens().empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                lost_.empty() ? "there is nothing to save yet"
                              : "the last answer ended in the middle of a token; ask something "
                                "first, then save");
  }
  SessionNote note;
  note.chat = true;
  note.thinking = thinking_;
  note.seed = generate_.sampling.seed;
  note.system = system_;
  note.system_is_said = system_is_said_;
  note.effort = effort_;
  note.effort_is_said = effort_is_said_;
  note.turns = num_turns_;
  session_->SaveTo(path, note.Text());
}

TurnResult Conversation::Load(const std::string& path) {
  std::unique_ptr<Snapshot> before;
  if (lost_.empty() && !session_->tokens().empty()) before = session_->Save();
  SessionNote note;
  try {
    note = SessionNote::Parse(session_->RestoreFrom(path), path);
    if (!note.chat) {
      throw Error(ErrorCode::kInvalidArgument, path + ": is a plain text, no conversation");
    }
  } catch (const Error&) {
    GoBack(before.get());
    throw;
  }
  before.reset();
  lost_.clear();
  system_ = note.system;
  effort_ = note.effort;
  system_is_said_ = note.system_is_said;
  effort_is_said_ = note.effort_is_said;
  thinking_ = note.thinking;
  num_turns_ = note.turns;
  generate_.sampling.seed = note.seed;

  TurnResult last;
  const auto parser = ChatParser::Create(engine_.tokenizer(), thinking_);
  const std::span<const TokenId> answer =
      std::span(session_->tokens()).subspan(session_->first_generated());
  for (TokenId id : answer) Add(parser->Push(id), &last);
  Add(parser->Finish(), &last);
  last.new_tokens = std::ssize(answer);
  closing_ = Closing(answer);
  return last;
}

}  // namespace deltafin
