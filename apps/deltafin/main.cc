// deltafin: the complete Kimi K3 on one ordinary computer.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command_line.h"
#include "deltafin/error.h"
#include "descriptors.h"
#include "flag_checks.h"
#include "interrupt.h"

namespace deltafin {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr const char* kSeeHelp = "\nRun with --help for more information.\n";

// A standard stream that was closed would be the number of the next file that is opened, a shard
// perhaps, and what is printed would go there. Opened the wrong way round, so that what uses it
// fails.
void OccupyStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free: this one.
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// What was printed has arrived, or this is an error: a full disk must not look like success.
void CheckStandardOutput() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  throw Error(
      ErrorCode::kIo,
      "standard output: not all of it could be written; is its disk full, or is it closed?");
}

std::string Joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// "-hello" as it was typed: CLI11 takes it for -h and prints the help. "" where help was asked for.
std::string TakenForHelp(int argc, char** argv) {
  std::string taken;
  for (const std::string_view word : std::span(argv, argv + argc)) {
    if (word == "--") break;
    if (word == "-h" || word == "--help") return "";
    if (taken.empty() && word.starts_with("-h")) taken = word;
  }
  return taken;
}

// Of a word that was perhaps a text and no option, where the command has room for one.
std::string DashHint(const CLI::App& command, const std::vector<std::string>& words) {
  const auto word = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return w.starts_with('-'); });
  const auto is_open = [](const CLI::Option* o) { return o->get_positional() && o->count() == 0; };
  if (word == words.end() || command.get_options(is_open).empty()) return "";
  std::string names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    names = app->get_name() + " " + names;
  }
  return "\nWhat begins with a dash and is no option comes after --: " + names + "-- \"" + *word +
         "\"";
}

const CLI::App* InnermostCommand(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string NotExpected(const std::vector<std::string>& words, const std::string& hint) {
  return "deltafin: not expected: " + Joined(words, " ") + hint + kSeeHelp;
}

// CLI11 lists what it did not expect from the last to the first, says of a word in the place of a
// command that is none "a subcommand is required", and of a text that begins with a dash that there
// is no text.
std::string FailureMessage(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> not_expected = app->remaining(true);
  app = InnermostCommand(app);
  const std::string hint = DashHint(*app, not_expected);
  const bool lacks_text = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || (lacks_text && !hint.empty())) {
    return NotExpected(not_expected, hint);
  }
  const std::vector<std::string> rest = app->remaining();
  const std::vector<const CLI::App*> commands =
      app->get_subcommands([](const CLI::App*) { return true; });
  if (rest.empty() || commands.empty()) {
    return "deltafin: " + CLI::FailureMessage::simple(app, error);
  }
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return "deltafin: expected a command (" + Joined(names, ", ") + "), got \"" + rest.front() +
         "\"" + kSeeHelp;
}

int Main(int argc, char** argv) {
  CLI::App app{"Runs the complete Kimi K3 with the weights on disk."};
  app.name("deltafin");
  app.set_version_flag("--version", std::string("deltafin ") + DELTAFIN_VERSION);
  app.require_subcommand(1);
  int status = 0;
  AddRunCommand(app, &status);
  AddChatCommand(app, &status);
  AddServeCommand(app, &status);
  AddTokenizeCommand(app, &status);
  AddRenderCommand(app, &status);
  AddSessionsCommand(app, &status);
  AddInfoCommand(app, &status);
  AddConvertCommand(app, &status);
  AddBenchCommand(app, &status);
  AddQualityCommand(app, &status);
  AddTraceCommand(app, &status);
  AddSynthCommand(app, &status);
  AddSetupCommand(app, &status);
  AddVerifyCommand(app, &status);
  AddWarmCommand(app, &status);
  AddCleanCommand(app, &status);
  AddCompletionCommand(app, &status);
  AddManCommand(app, &status);
  RefuseEmptyValues(app);
  app.failure_message(FailureMessage);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    const std::string taken = TakenForHelp(argc, argv);
    const std::string hint = DashHint(*InnermostCommand(&app), {taken});
    if (hint.empty()) {
      app.exit(help);
    } else {
      std::fputs(NotExpected({taken}, hint).c_str(), stderr);
      status = kExitUsage;
    }
  } catch (const CLI::ParseError& error) {
    status = app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (status == 0) CheckStandardOutput();
  return status;
}

}  // namespace

std::string ReadTextFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) {
      throw Error(ErrorCode::kNotFound, path + ": cannot be opened for reading");
    }
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof(block)) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) {
    throw Error(ErrorCode::kIo, (path == "-" ? "standard input" : path) +
                                    ": reading failed; expected a file with text");
  }
  return text;
}

}  // namespace deltafin

int main(int argc, char** argv) {
  deltafin::OccupyStandardStreams();
  deltafin::RaiseDescriptorLimit();
  try {
    return deltafin::Main(argc, argv);
  } catch (const deltafin::Error& error) {
    if (error.code() == deltafin::ErrorCode::kCancelled && deltafin::InterruptSignal() != 0) {
      return 128 + deltafin::InterruptSignal();
    }
    std::fprintf(stderr, "deltafin: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "deltafin: out of memory; pass a smaller --ram or --context, or free memory\n");
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "deltafin: %s: cannot be read: %s\n", error.path1().c_str(),
                 error.code().message().c_str());
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    std::fprintf(
        stderr, "deltafin: %s: %s%s\n", no_thread ? "cannot start a thread" : "unexpected",
        error.what(),
        no_thread ? "; allow more of them (ulimit -u, or the limit of the control group)" : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltafin: unexpected: %s\n", error.what());
  }
  return deltafin::kExitFailure;
}
