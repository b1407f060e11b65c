// A conversation on one session: every turn appends what is new, so that nothing is computed twice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deltafin/chat.h"
#include "deltafin/session.h"

namespace deltafin {

// How often the user asked to stop, as AnswerInterrupt counts it.
struct StopRequests {
  std::function<bool()> after_token;
  std::function<bool()> now;
};

struct TurnCallbacks {
  // While the prompt is computed: the layer that the pass is in.
  std::function<void(int64_t layer, int64_t num_prompt_tokens)> on_prompt_layer;
  std::function<void(const ChatDelta&)> on_delta;
  StopRequests stop;
};

struct TurnResult {
  std::string reasoning;
  std::string content;
  int64_t prompt_tokens = 0;  // that this turn added
  int64_t new_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  FinishReason finish_reason = FinishReason::kLength;
  bool withdrawn = false;  // stopped before the answer began: the question was taken back
};

class Conversation {
 public:
  // The engine must outlive it. `generate`: sampling and limits of every answer.
  Conversation(Engine& engine, GenerateOptions generate);

  // Said before the next question, at the begin of a conversation or in the middle of one, unless
  // it has been said already.
  void SetSystem(const std::string& text);
  void SetEffort(ReasoningEffort effort);
  void SetSeed(uint64_t seed) { generate_.sampling.seed = seed; }
  const std::string& system() const { return system_; }
  ReasoningEffort effort() const { return effort_; }

  // Asks and returns the answer. Throws Error as Session::Append: before the answer began the
  // question is taken back, else what was said of the answer stays, and the next question computes
  // the conversation again.
  TurnResult Ask(const std::string& question, const TurnCallbacks& callbacks);

  // Forgets what was said; the system message and the effort stay.
  void Clear();

  int64_t num_tokens() const;
  int64_t num_turns() const { return num_turns_; }

  // Writes to a session file that deltafin run --session reads too. Throws Error.
  void Save(const std::string& path) const;
  // Goes on where a file was saved. Returns the last answer. Throws Error; the conversation is then
  // as it was.
  TurnResult Load(const std::string& path);

 private:
  std::vector<TokenId> Prompt(const std::string& question, bool* thinking) const;
  // What ends an answer that was cut off; nothing when it ended by itself.
  std::vector<TokenId> Closing(std::span<const TokenId> answer) const;
  // To a session's state of before, or to an empty one.
  void GoBack(const Snapshot* before);
  // The answer was cut off in the middle of a pass.
  void LoseState();
  // Computes the tokens of a conversation whose session was.
  void Rebuild(const TurnCallbacks& callbacks);
  void AppendPrompt(const std::vector<TokenId>& prompt, const TurnCallbacks& callbacks);

  Engine& engine_;
  GenerateOptions generate_;
  std::unique_ptr<Session> session_;
  std::string system_;
  ReasoningEffort effort_ = ReasoningEffort::kMax;
  bool system_is_said_ = false;
  bool effort_is_said_ = false;
  bool thinking_ = true;          // the last answer began inside <think>
  std::vector<TokenId> closing_;  // ends the last answer, where it was cut off
  std::vector<TokenId> lost_;     // tokens that the session has to be given again
  int64_t num_turns_ = 0;
};

}  // namespace deltafin
