// deltafin serve: the OpenAI-compatible server.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>

#include "command_line.h"
#include "deltafin/saved_sessions.h"
#include "deltafin/scheduler.h"
#include "descriptors.h"
#include "environment.h"
#include "flag_checks.h"
#include "interrupt.h"
#include "model_options.h"
#include "sampling_options.h"
#include "server/server.h"

namespace deltafin {
namespace {

// Descriptors that are no connections: the model's files, the listener, spare ones.
constexpr uint64_t kOtherDescriptors = 512;
constexpr int kDefaultParallel = 4;
constexpr const char* kDefaultKeepRam = "64M";

struct ServeOptions {
  ModelOptions model;
  SamplingFlags sampling;  // only --spec
  HttpServerOptions http;
  std::string api_key;
  bool insecure = false;
  std::vector<std::string> origins;
  std::vector<std::string> aliases;
  std::optional<int> parallel;
  int max_queued = 32;
  int64_t max_tokens = 0;
  std::string max_body = "16M";
  std::optional<std::string> keep_ram;
  std::string keep_dir;
  std::string keep_disk = "16G";
  bool keep_nothing = false;
  double grace_seconds = 30;
  bool quiet = false;
};

// The number of connections that are left room for.
size_t RoomForConnections(size_t wanted) {
  const uint64_t limit = RaiseDescriptorLimit();
  const uint64_t room = limit > 2 * kOtherDescriptors ? limit - kOtherDescriptors : limit / 2;
  return static_cast<size_t>(std::min<uint64_t>(wanted, room));
}

void Log(const std::string& line) {
  static std::mutex mutex;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
  const std::lock_guard lock(mutex);
  std::fprintf(stderr, "%s %s\n", stamp, line.c_str());
}

int64_t Ceiling(const ServeOptions& options) {
  if (options.max_tokens > 0) return options.max_tokens;
  const std::string text = Environment("K3_SERVER_MAX_TOKENS");
  if (text.empty()) return 0;
  try {
    size_t used = 0;
    const long long tokens = std::stoll(text, &used);
    if (used == text.size() && tokens >= 0) return tokens;
  } catch (const std::exception&) {  // not a number
  }
  throw Error(ErrorCode::kInvalidArgument,
              "K3_SERVER_MAX_TOKENS: expected a number of tokens, got \"" + text + "\"");
}

SchedulerOptions ToSchedulerOptions(const ServeOptions& options, const EngineOptions& engine) {
  SchedulerOptions scheduler;
  scheduler.parallel = engine.parallel_sessions;
  scheduler.max_queued = options.max_queued;
  scheduler.always_from_start = options.keep_nothing;
  if (options.keep_nothing) return scheduler;
  scheduler.snapshot_bytes = engine.snapshot_bytes;
  scheduler.state_dir =
      options.keep_dir.empty()
          ? (std::filesystem::path(engine.model_dir) / ".deltafin" / "states").string()
          : options.keep_dir;
  scheduler.state_dir_bytes = ParseBytes("--keep-disk", options.keep_disk);
  return scheduler;
}

ServerOptions ToServerOptions(const ServeOptions& options, const SchedulerOptions& scheduler,
                              const ModelInfo& info) {
  ServerOptions server;
  server.http = options.http;
  server.http.max_body_bytes = ParseBytes("--max-body", options.max_body);
  server.http.max_connections = RoomForConnections(options.http.max_connections);
  server.api_key = options.api_key;
  server.insecure = options.insecure;
  server.origins = options.origins;
  server.model_names = {info.name};
  server.model_names.insert(server.model_names.end(), options.aliases.begin(),
                            options.aliases.end());
  server.max_new_tokens = Ceiling(options);
  server.draft_tokens = std::min(MaxDraftTokens(options.sampling), info.max_draft_tokens);
  server.version = DELTAFIN_VERSION;
  server.scheduler = scheduler;
  server.log = Log;
  if (options.quiet) server.log = [](const std::string&) {};
  return server;
}

void WarnWhenStreaming(const ModelInfo& info) {
  if (info.streamed_spine_bytes == 0) return;
  std::fprintf(stderr,
               "warning: %.2f GB of the spine do not fit into memory and are read again for every "
               "pass: a prompt may take minutes, and an answer hours. Clients should stream, and "
               "wait without a time limit\n",
               static_cast<double>(info.streamed_spine_bytes) / 1e9);
}

// Browsers say where a page is from as SCHEME://HOST[:PORT]; nothing else would ever match.
void CheckOrigins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 &&
                           origin.size() > scheme + 3 &&
                           origin.find('/', scheme + 3) == std::string::npos;
    if (is_origin || origin == "*" || origin == "null") continue;
    throw Error(ErrorCode::kInvalidArgument,
                "--cors: expected an origin like https://chat.example, without a path, or *, got "
                "\"" +
                    origin + "\"");
  }
}

// States of prompts go to the folder that the flags name. The default one may be that of an
// installation that only root may write, or in use by another server: then they stay in memory.
std::unique_ptr<Scheduler> MakeScheduler(const ServeOptions& options, Engine& engine,
                                         SchedulerOptions scheduler) {
  try {
    return Scheduler::Create(engine, scheduler);
  } catch (const Error& error) {
    const bool is_default = options.keep_dir.empty() && !scheduler.state_dir.empty();
    if (!is_default || error.code() != ErrorCode::kIo) throw;
    std::cerr << "states of prompts are kept in memory only, --keep-dir names a folder for them: "
              << error.what() << "\n";
    scheduler.state_dir.clear();
    return Scheduler::Create(engine, scheduler);
  }
}

std::string Address(const std::string& host, uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string name = host.empty() || host == "*" ? "0.0.0.0" : host;
  return "http://" + (is_v6 ? "[" + name + "]" : name) + ":" + std::to_string(port);
}

// Opens the model with room for what the flags say; where they say nothing, for less of it when the
// memory does not hold the defaults.
std::unique_ptr<Engine> OpenEngine(const ServeOptions& options, EngineOptions* engine) {
  engine->max_draft_tokens = MaxDraftTokens(options.sampling);
  engine->parallel_sessions = options.parallel.value_or(kDefaultParallel);
  engine->snapshot_bytes =
      options.keep_nothing ? 0
                           : ParseBytes("--keep-ram", options.keep_ram.value_or(kDefaultKeepRam));
  while (true) {
    try {
      return Engine::Open(*engine);
    } catch (const Error& error) {
      const bool fewer = !options.parallel && engine->parallel_sessions > 1;
      const bool nothing = !options.keep_ram && engine->snapshot_bytes > 0;
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      if (!fewer && !nothing) {
        throw Error(error.code(), std::string(error.what()) +
                                      "; --parallel and --keep-ram are parts of the session state");
      }
      if (fewer) {
        engine->parallel_sessions /= 2;
      } else {
        engine->snapshot_bytes = 0;
      }
    }
  }
}

// Running answers may wait for the hub as long as they have to finish. A second more: they end by
// themselves where they can. For one thread.
std::function<bool()> GraceIsOver(double grace_seconds) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> grace(grace_seconds + 1);
  return [grace, since = std::optional<Clock::time_point>()]() mutable {
    if (!IsInterrupted()) return false;
    if (!since) since = Clock::now();
    return Clock::now() - *since > grace;
  };
}

int Serve(const ServeOptions& options) {
  CheckOrigins(options.origins);
  EngineOptions engine_options = ToEngineOptions(options.model, GraceIsOver(options.grace_seconds));
  for (const std::string& notice : EnvironmentNotices()) std::cerr << notice << "\n";
  // From here on a signal ends the server in good order, once it is up.
  CatchInterrupts();
  // Whoever read the log has gone: that is no reason to end.
  std::signal(SIGPIPE, SIG_IGN);
  engine_options.profile = true;  // for those who watch: a few clock readings a layer
  const auto engine = OpenEngine(options, &engine_options);
  const SchedulerOptions scheduler_options = ToSchedulerOptions(options, engine_options);
  Introduce(options.model, *engine);
  WarnWhenStreaming(engine->info());

  const auto scheduler = MakeScheduler(options, *engine, scheduler_options);
  const auto server = Server::Start(*engine, *scheduler,
                                    ToServerOptions(options, scheduler_options, engine->info()));
  // For people, and for programs that started this one with --port 0.
  std::cerr << "listening on " << Address(options.http.host, server->port()) << std::endl;
  while (InterruptSignal() == 0) usleep(50000);
  std::fprintf(stderr,
               "stopping: running answers have %.0f s to finish (once more: stop at once)\n",
               options.grace_seconds);
  server->Stop(options.grace_seconds);
  return 0;
}

void AddNetworkFlags(CLI::App& command, ServeOptions* options) {
  command
      .add_option("--host", options->http.host,
                  "Address to listen on (default: 127.0.0.1, which only this machine reaches)")
      ->type_name("ADDRESS")
      ->envname("DELTAFIN_HOST");
  command.add_option("--port", options->http.port, "Port (default: 8000; 0: any free one)")
      ->type_name("N")
      ->transform(WholeNumber(0, 65535))
      ->envname("DELTAFIN_PORT");
  command
      .add_option("--api-key", options->api_key,
                  "Requests need the header Authorization: Bearer KEY. Better set as "
                  "DELTAFIN_API_KEY: others on this machine can see the command line")
      ->type_name("KEY")
      ->envname("DELTAFIN_API_KEY");
  command.add_flag("--insecure", options->insecure,
                   "Listen where others can reach it without a key");
  AllowRepeats(
      command
          .add_option(
              "--cors", options->origins,
              "Web pages of this origin (https://chat.example) may use the server; * for any; "
              "may be repeated")
          ->type_name("ORIGIN"));
  command
      .add_option("--max-connections", options->http.max_connections,
                  "Open connections; beyond, idle ones are closed (default: 2048)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1000000));
  command.add_option("--max-body", options->max_body, "Longest request body (default: 16M)")
      ->type_name("SIZE");
}

void AddWorkFlags(CLI::App& command, ServeOptions* options) {
  command
      .add_option("--parallel", options->parallel,
                  "Answers that advance together, each with a context of its own (default: 4, or "
                  "fewer where the memory holds no more)")
      ->type_name("N")
      ->transform(WholeNumber(1, 64));
  command
      .add_option("--queue", options->max_queued,
                  "Requests that wait; beyond, clients are told to come back (default: 32)")
      ->type_name("N")
      ->transform(WholeNumber(0, 100000));
  command
      .add_option("--max-tokens", options->max_tokens,
                  "No answer may have more new tokens (default: no limit but the context; "
                  "K3_SERVER_MAX_TOKENS)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 40));
  AllowRepeats(
      command
          .add_option("--alias", options->aliases,
                      "Another name under which clients may ask for the model; may be repeated")
          ->type_name("NAME"));
  command
      .add_option("--keep-ram", options->keep_ram,
                  "Memory for the states of prompts that later ones may begin with (default: 64M)")
      ->type_name("SIZE");
  command
      .add_option("--keep-dir", options->keep_dir,
                  "Folder for such states, where a restarted server finds them (default: "
                  "MODEL/.deltafin/states)")
      ->type_name("DIR");
  command
      .add_option("--keep-disk", options->keep_disk,
                  "Disk space for them; the oldest go first (default: 16G)")
      ->type_name("SIZE");
  command.add_flag("--keep-nothing", options->keep_nothing,
                   "Every prompt is computed from its start");
  command
      .add_option(
          "--spec", options->sampling.spec,
          "Guesses at several tokens, which never change an answer: auto (default), off, or "
          "up to N (1 to 8; K3_SPEC)")
      ->type_name("MODE")
      ->envname("K3_SPEC");
  command
      .add_option("--grace", options->grace_seconds,
                  "After SIGTERM or Ctrl-C running answers have so long to finish (default: 30)")
      ->type_name("SECONDS")
      ->check(Number(0, 1e6));
  command.add_flag("--quiet", options->quiet, "No line for every request");
}

}  // namespace

void AddServeCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand(
      "serve", "Answer OpenAI's HTTP interface, and show a page at / (docs/server.md)");
  auto options = std::make_shared<ServeOptions>();
  AddNetworkFlags(*command, options.get());
  AddWorkFlags(*command, options.get());
  AddModelOptions(*command, &options->model);
  AddPreloadOption(*command, &options->model);
  command->callback([options, status] { *status = Serve(*options); });
}

}  // namespace deltafin
