// deltafin sessions: what is saved, and removing it.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "chat/printable.h"
#include "command_line.h"
#include "deltafin/error.h"
#include "deltafin/json.h"
#include "deltafin/saved_sessions.h"
#include "deltafin/tokenizer.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct SessionsOptions {
  std::string model;
  std::string folder;
  std::string name;
  bool json = false;

  std::string ModelDir() const { return model.empty() ? DefaultModelDir() : model; }

  // A mistyped folder must not look like one without sessions.
  std::string Folder() const {
    const std::string& named = folder.empty() ? model : folder;
    if (!named.empty() && !std::filesystem::is_directory(named)) {
      throw Error(ErrorCode::kNotFound, named + ": there is no such folder");
    }
    return folder.empty() ? DefaultSessionFolder(ModelDir()) : folder;
  }
};

Json ToJson(const SavedSession& session) {
  if (!session.problem.empty()) return {{"name", session.name}, {"problem", session.problem}};
  return {{"name", session.name},
          {"tokens", session.num_tokens},
          {"bytes", session.bytes},
          {"cache", session.cache_format == CacheFormat::kF32 ? "f32" : "bf16"},
          {"spine", session.spine}};
}

void List(const SessionsOptions& options) {
  const std::vector<SavedSession> sessions = ListSessions(options.Folder());
  if (options.json) {
    Json json = Json::array();
    for (const SavedSession& session : sessions) json.push_back(ToJson(session));
    std::cout << DumpJson(json) << "\n";
    return;
  }
  for (const SavedSession& session : sessions) {
    if (session.problem.empty()) {
      std::printf("%-24s %8lld tokens %12llu bytes\n", session.name.c_str(),
                  static_cast<long long>(session.num_tokens),
                  static_cast<unsigned long long>(session.bytes));
    } else {
      std::printf("%-24s unusable: %s\n", session.name.c_str(), session.problem.c_str());
    }
  }
}

void Show(const SessionsOptions& options) {
  std::vector<TokenId> tokens;
  const SavedSession session = InspectSession(options.Folder(), options.name, &tokens);
  const std::string bytes = Tokenizer::Load(options.ModelDir())->Decode(tokens);
  StreamDecoder decoder;  // the last character may be half there
  std::string text = decoder.Push(bytes);
  text += decoder.Finish();
  if (!options.json) {
    std::cout << (isatty(STDOUT_FILENO) != 0 ? Printable(text) : text) << "\n";
    return;
  }
  Json json = ToJson(session);
  json["ids"] = tokens;
  json["text"] = text;
  std::cout << DumpJson(json) << "\n";
}

}  // namespace

void AddSessionsCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("sessions", "Conversations that run --session saved");
  command->require_subcommand(1);
  auto options = std::make_shared<SessionsOptions>();
  const auto add = [&](const char* name, const char* help, bool needs_name,
                       void (*action)(const SessionsOptions&)) {
    CLI::App* sub = command->add_subcommand(name, help);
    if (needs_name) sub->add_option("name", options->name, "The session")->required();
    sub->add_option("--model", options->model, "Folder of the checkpoint (default: as run)")
        ->type_name("DIR");
    sub->add_option("--session-dir", options->folder,
                    "Folder of saved sessions (default: .deltafin/sessions in the model's folder)")
        ->type_name("DIR");
    sub->add_flag("--json", options->json, "JSON on stdout");
    sub->callback([options, status, action] {
      action(*options);
      *status = 0;
    });
  };
  add("list", "Names, lengths and sizes", false, List);
  add("show", "The whole text of one, markers included", true, Show);
  add("rm", "Remove one", true,
      [](const SessionsOptions& o) { RemoveSession(o.Folder(), o.name); });
}

}  // namespace deltafin
