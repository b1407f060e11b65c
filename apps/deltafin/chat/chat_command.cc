// deltafin chat: a conversation at the terminal.
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "../command_line.h"
#include "../effort.h"
#include "../environment.h"
#include "../flag_checks.h"
#include "../model_options.h"
#include "../sampling_options.h"
#include "../saved_run.h"
#include "../terminal.h"
#include "answer_interrupt.h"
#include "chat_loop.h"
#include "deltafin/saved_sessions.h"

namespace deltafin {
namespace {

struct ChatOptions {
  ModelOptions model;
  SamplingFlags sampling;
  SessionFlags session;
  std::string system;
  std::string effort;  // "": max
  int64_t max_new = 0;
  bool hide_thinking = false;
  bool no_history = false;
};

// $XDG_STATE_HOME/deltafin/chat_history; "" without a home.
std::string HistoryPath() {
  std::filesystem::path state = Environment("XDG_STATE_HOME");
  if (!state.is_absolute()) {
    const std::string home = Environment("HOME");
    if (home.empty()) return "";
    state = std::filesystem::path(home) / ".local" / "state";
  }
  return (state / "deltafin" / "chat_history").string();
}

ViewOptions ChooseView(const ChatOptions& options) {
  ViewOptions view;
  view.terminal = IsTerminal(STDIN_FILENO) && IsTerminal(STDOUT_FILENO);
  view.styled = view.terminal && WantsStyles();
  view.show_thinking = !options.hide_thinking;
  return view;
}

int Chat(const ChatOptions& options) {
  // In the middle of a token: what comes from the hub is for one.
  EngineOptions engine_options = ToEngineOptions(options.model, AnswerInterrupt::wants_stop_now);
  engine_options.max_draft_tokens = MaxDraftTokens(options.sampling);
  const ReasoningEffort effort =
      options.effort.empty() ? ReasoningEffort::kMax : ParseEffort("--effort", options.effort);
  GenerateOptions generate;
  ApplySamplingFlags(options.sampling, &generate);
  generate.max_new_tokens = options.max_new;
  ChatLoopOptions loop_options;
  loop_options.view = ChooseView(options);
  loop_options.session_name = options.session.name;
  loop_options.session_folder = options.session.folder.empty()
                                    ? DefaultSessionFolder(engine_options.model_dir)
                                    : options.session.folder;
  for (const std::string& notice : EnvironmentNotices()) std::cerr << notice << "\n";
  const auto engine = OpenEngine(options.model, engine_options);

  Conversation conversation(*engine, generate);
  conversation.SetSystem(options.system);
  conversation.SetEffort(effort);
  const bool edits = loop_options.view.terminal;
  const auto lines = edits ? LineSource::FromTerminal(options.no_history ? "" : HistoryPath(),
                                                      loop_options.view.styled)
                           : LineSource::FromPipe();
  if (edits) std::cout << "/help lists the commands, Ctrl-D leaves.\n";
  ChatLoop loop(*engine, conversation, *lines, loop_options);
  if (loop.Resume()) {
    // What the flags say counts from the next question on; what they do not say, as it was.
    if (!options.system.empty()) conversation.SetSystem(options.system);
    if (!options.effort.empty()) conversation.SetEffort(effort);
    if (options.sampling.seed) conversation.SetSeed(*options.sampling.seed);
  }
  return loop.Run();
}

}  // namespace

void AddChatCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("chat", "A conversation at the terminal, or over a pipe");
  auto options = std::make_shared<ChatOptions>();
  command->add_option("--system", options->system, "System message")->type_name("TEXT");
  command
      ->add_option("--effort", options->effort, "Thinking effort: none, low, high or max (default)")
      ->type_name("LEVEL");
  command->add_flag("--hide-thinking", options->hide_thinking,
                    "Fold the thinking (/think unfolds it)");
  command
      ->add_option("--max-new", options->max_new,
                   "At most so many new tokens an answer (default: until it ends)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 40));
  command->add_flag("--no-history", options->no_history,
                    "Do not keep what is typed for the arrow keys of later runs");
  AddSamplingFlags(*command, &options->sampling);
  AddSessionFlags(*command, &options->session);
  AddModelOptions(*command, &options->model);
  AddPreloadOption(*command, &options->model);
  command->footer("Commands:\n" + ChatLoop::Help());
  command->callback([options, status] { *status = Chat(*options); });
}

}  // namespace deltafin
