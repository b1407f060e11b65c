#include "chat_loop.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "../effort.h"
#include "answer_interrupt.h"
#include "deltafin/error.h"
#include "deltafin/saved_sessions.h"
#include "printable.h"
#include "status_line.h"

namespace deltafin {
namespace {

struct CommandHelp {
  std::string_view name;
  std::string_view argument;
  std::string_view text;
};

constexpr std::array kCommands = {
    CommandHelp{"/think", "", "show or hide the thinking, that of the last answer too"},
    CommandHelp{"/effort", "LEVEL", "how much to think: none, low, high or max"},
    CommandHelp{"/system", "TEXT", "the system message; without a text: show it"},
    CommandHelp{"/clear", "", "begin a new conversation"},
    CommandHelp{"/save", "NAME", "keep the conversation, from now on after every answer"},
    CommandHelp{"/load", "NAME", "go on with a saved one; without a name: list them"},
    CommandHelp{"/stats", "", "tokens, speed, experts, memory"},
    CommandHelp{"/help", "", "this list"},
    CommandHelp{"/quit", "", "leave (or Ctrl-D)"},
};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// A path or a question may begin with a slash too: only words of letters are commands.
bool LooksLikeCommand(std::string_view line) {
  const std::string_view word = line.substr(0, line.find_first_of(" \t\n"));
  return word.size() > 1 && word[0] == '/' &&
         word.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1) == std::string_view::npos;
}

}  // namespace

ChatLoop::ChatLoop(Engine& engine, Conversation& conversation, LineSource& lines,
                   const ChatLoopOptions& options)
    : engine_(engine), conversation_(conversation), lines_(lines), options_(options) {}

std::string ChatLoop::Help() {
  std::string text;
  for (const CommandHelp& command : kCommands) {
    std::string usage = std::string(command.name) + " " + std::string(command.argument);
    usage.resize(16, ' ');
    text += usage + std::string(command.text) + "\n";
  }
  return text +
         "A backslash at the end of a line, Alt-Enter or a paste make a message of several lines.\n"
         "Ctrl-C stops an answer after the token that is being computed; twice: at once.\n";
}

void ChatLoop::Note(const std::string& text) const {
  std::FILE* const out = options_.view.terminal ? stdout : stderr;
  if (options_.view.styled) std::fputs("\033[2m", out);
  std::fputs(text.c_str(), out);
  if (options_.view.styled) std::fputs("\033[0m", out);
  if (!text.ends_with('\n')) std::fputs("\n", out);
  std::fflush(out);
}

void ChatLoop::Complain(const std::string& text) {
  failed_ = true;
  std::fprintf(stderr, "deltafin: %s\n", text.c_str());
}

int ChatLoop::Run() {
  // One that comes just after an answer must not end the conversation.
  if (options_.view.terminal) std::signal(SIGINT, SIG_IGN);
  while (const std::optional<std::string> message = lines_.Next()) {
    const std::string_view line = Trim(*message);
    if (line.empty()) continue;
    try {
      if (!LooksLikeCommand(line)) {
        Ask(std::string(line));
      } else if (!Command(std::string(line))) {
        break;
      }
    } catch (const Error& error) {
      Complain(error.what());
    }
    if (was_interrupted_ && !options_.view.terminal) return 128 + SIGINT;
  }
  // A person has seen what went wrong; a script has not.
  return failed_ && !options_.view.terminal ? 1 : 0;
}

void ChatLoop::Ask(const std::string& question) {
  const ResourceUse before = ResourceUse::Of(engine_);
  AnswerView view(options_.view);
  {
    const AnswerInterrupt interrupt;
    TurnCallbacks callbacks;
    callbacks.stop = {[] { return AnswerInterrupt::wants_stop(); },
                      [] { return AnswerInterrupt::wants_stop_now(); }};
    callbacks.on_delta = [&](const ChatDelta& delta) { view.Push(delta); };
    if (options_.view.terminal) {
      callbacks.on_prompt_layer = [&](int64_t layer, int64_t num_prompt_tokens) {
        view.PromptProgress(layer, engine_.info().num_layers, num_prompt_tokens);
      };
    }
    TurnResult turn;
    try {
      turn = conversation_.Ask(question, callbacks);
    } catch (const Error&) {
      view.Finish();  // what failed is said on a line of its own, and not dimmed
      throw;
    }
    was_interrupted_ = turn.finish_reason == FinishReason::kCancelled;
    view.Finish();
    if (turn.withdrawn) {
      Note("stopped before the answer began; the question was taken back");
      return;
    }
    last_ = std::move(turn);
  }
  if (last_.finish_reason == FinishReason::kCancelled) Note("(stopped)");
  if (last_.finish_reason == FinishReason::kLength) {
    Note("(cut off: the limit of new tokens or the context is reached)");
  }
  Note(StatusLine(last_, before, ResourceUse::Of(engine_), conversation_.num_tokens(),
                  engine_.info().context_tokens));
  if (!options_.session_name.empty()) {
    conversation_.Save(SessionPath(options_.session_folder, options_.session_name));
  }
}

bool ChatLoop::Command(const std::string& line) {
  const size_t end = line.find_first_of(" \t\n");
  const std::string name = line.substr(0, end);
  const std::string argument(Trim(std::string_view(line).substr(name.size())));
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    Note(Help());
  } else if (name == "/think") {
    ToggleThinking();
  } else if (name == "/effort") {
    SetEffort(argument);
  } else if (name == "/system") {
    SetSystem(argument);
  } else if (name == "/clear") {
    conversation_.Clear();
    last_ = {};
    KeepAs("", nullptr);
    Note("a new conversation");
  } else if (name == "/save") {
    Save(argument);
  } else if (name == "/load") {
    Load(argument);
  } else if (name == "/stats") {
    Note(StatsText(engine_, conversation_, last_));
  } else {
    Complain("no command " + name + "; /help lists them");
  }
  return true;
}

void ChatLoop::ToggleThinking() {
  options_.view.show_thinking = !options_.view.show_thinking;
  Note(options_.view.show_thinking ? "thinking is shown" : "thinking is hidden");
  if (options_.view.show_thinking) ShowThought(last_.reasoning, options_.view);
}

void ChatLoop::SetEffort(const std::string& text) {
  if (!text.empty()) conversation_.SetEffort(ParseEffort("/effort", text));
  Note(std::string("effort ") + EffortName(conversation_.effort()));
}

void ChatLoop::SetSystem(const std::string& text) {
  if (!text.empty()) conversation_.SetSystem(text);
  const std::string& system = conversation_.system();
  Note(system.empty() ? "no system message" : "system: " + Printable(system));
}

void ChatLoop::Save(const std::string& name) {
  const std::string& wanted = name.empty() ? options_.session_name : name;
  if (wanted.empty()) throw Error(ErrorCode::kInvalidArgument, "/save: expected a name");
  std::unique_ptr<SessionLock> lock = LockOf(wanted);
  if (wanted != options_.session_name && SessionExists(options_.session_folder, wanted)) {
    throw Error(ErrorCode::kInvalidArgument,
                "/save: there is a conversation " + wanted +
                    " already; take another name, or /load it to go on with it");
  }
  conversation_.Save(SessionPath(options_.session_folder, wanted));
  KeepAs(wanted, std::move(lock));
  Note("saved as " + wanted + ", and again after every answer");
}

void ChatLoop::Load(const std::string& name) {
  if (name.empty()) {
    std::string text;
    for (const SavedSession& session : ListSessions(options_.session_folder)) {
      text += session.name + (session.problem.empty()
                                  ? ": " + std::to_string(session.num_tokens) + " tokens\n"
                                  : ": unusable, " + session.problem + "\n");
    }
    Note(text.empty() ? "nothing is saved yet" : text);
    return;
  }
  std::unique_ptr<SessionLock> lock = LockOf(name);
  last_ = conversation_.Load(SessionPath(options_.session_folder, name));
  KeepAs(name, std::move(lock));
  Note(std::to_string(conversation_.num_turns()) + " turns, " +
       std::to_string(conversation_.num_tokens()) + " tokens. The last answer was:");
  AnswerView view(options_.view);
  ChatDelta last;
  last.reasoning = last_.reasoning;
  last.content = last_.content;
  view.Push(last);
  view.Finish();
}

std::unique_ptr<SessionLock> ChatLoop::LockOf(const std::string& name) const {
  if (lock_ != nullptr && name == options_.session_name) return nullptr;
  return std::make_unique<SessionLock>(options_.session_folder, name);
}

void ChatLoop::KeepAs(const std::string& name, std::unique_ptr<SessionLock> lock) {
  if (lock != nullptr || name.empty()) lock_ = std::move(lock);
  options_.session_name = name;
}

bool ChatLoop::Resume() {
  if (options_.session_name.empty()) return false;
  lock_ = LockOf(options_.session_name);
  if (!SessionExists(options_.session_folder, options_.session_name)) return false;
  Load(options_.session_name);
  return true;
}

}  // namespace deltafin
