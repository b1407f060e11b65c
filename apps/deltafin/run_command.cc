// deltafin run: a prompt in, text out, token by token.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>

#include "chat/printable.h"
#include "command_line.h"
#include "deltafin/chat.h"
#include "deltafin/json.h"
#include "deltafin/session.h"
#include "effort.h"
#include "environment.h"
#include "flag_checks.h"
#include "interrupt.h"
#include "model_options.h"
#include "profile_report.h"
#include "progress_line.h"
#include "sampling_options.h"
#include "saved_run.h"
#include "terminal.h"
#include "token_ids.h"

namespace deltafin {
namespace {

constexpr int64_t kDefaultNewTokens = 256;

struct RunOptions {
  ModelOptions model;
  SamplingFlags sampling;
  SessionFlags session;
  std::string text;  // positional
  std::string prompt;
  std::string prompt_file;
  std::string ids;
  std::string system;
  std::string effort;  // "": max
  std::string logits;
  std::string trace;
  bool chat = false;
  bool no_think = false;
  bool ignore_stop = false;
  bool json = false;
  std::optional<int64_t> max_new;
};

int NumPrompts(const RunOptions& options) {
  return !options.text.empty() + !options.prompt.empty() + !options.prompt_file.empty() +
         !options.ids.empty();
}

// The prompt's text from whichever source was given; exactly one must be.
std::string PromptText(const RunOptions& options) {
  const int sources = NumPrompts(options);
  if (sources != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "run: expected one prompt (TEXT, -, --prompt, --prompt-file or --ids), got " +
                    std::to_string(sources));
  }
  if (!options.prompt_file.empty()) return ReadTextFile(options.prompt_file);
  if (options.text == "-") return ReadTextFile("-");
  return options.text.empty() ? options.prompt : options.text;
}

bool Thinks(const RunOptions& options) { return !options.no_think && options.effort != "none"; }

void CheckChatFlags(const RunOptions& options) {
  if (options.chat && !options.ids.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--chat renders text: it does not go with --ids");
  }
  if (!options.chat && (!options.system.empty() || options.no_think || !options.effort.empty())) {
    throw Error(ErrorCode::kInvalidArgument, "--system, --effort and --no-think need --chat");
  }
}

// Shows and collects what is generated. Answers go to stdout; reasoning, which a pipe does not
// want, to stderr.
class Output {
 public:
  Output(const Tokenizer& tokenizer, std::unique_ptr<ChatParser> parser, bool show)
      : tokenizer_(tokenizer), parser_(std::move(parser)), show_(show) {}

  void Push(TokenId id, bool is_stop) {
    if (parser_ != nullptr) {
      Take(parser_->Push(id));
    } else if (!is_stop) {
      Answer(decoder_.Push(tokenizer_.Bytes(id)));
    }
  }

  void Finish() {
    if (parser_ != nullptr) {
      Take(parser_->Finish());
    } else {
      Answer(decoder_.Finish());
    }
    if (!show_) return;
    EndReasoning();
    if (text_.empty() || text_.back() != '\n') std::fputc('\n', stdout);
    std::fflush(stdout);
  }

  const std::string& text() const { return text_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  void Take(const ChatDelta& delta) {
    Reasoning(delta.reasoning);
    Answer(delta.content);
    for (const ToolCall& call : delta.finished_calls) {
      calls_.push_back(call);
      if (show_) {
        EndReasoning();
        Show("\n[call " + call.name + " " + call.arguments + "]", stdout);
      }
    }
  }

  void Reasoning(const std::string& text) {
    reasoning_ += text;
    if (!show_ || text.empty()) return;
    if (!reasoning_open_) std::fputs(dim_ ? "\033[2mthinking: " : "thinking: ", stderr);
    reasoning_open_ = true;
    Show(text, stderr);
  }

  void EndReasoning() {
    if (reasoning_open_) std::fputs(dim_ ? "\033[0m\n" : "\n", stderr);
    reasoning_open_ = false;
  }

  void Answer(const std::string& text) {
    text_ += text;
    if (!show_ || text.empty()) return;
    EndReasoning();
    Show(text, stdout);
  }

  // A file or a pipe gets the bytes as they are.
  static void Show(const std::string& text, std::FILE* stream) {
    const std::string shown = isatty(fileno(stream)) != 0 ? Printable(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stream);
    std::fflush(stream);
  }

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatParser> parser_;  // null for raw text
  bool show_;
  const bool dim_ = IsTerminal(STDERR_FILENO) && WantsStyles();
  bool reasoning_open_ = false;
  StreamDecoder decoder_;
  std::string text_;
  std::string reasoning_;
  std::vector<ToolCall> calls_;
};

// Raw little-endian float32, one row of vocab_size for every prompt position.
class LogitsFile {
 public:
  explicit LogitsFile(const std::string& path)
      : path_(path), file_(std::fopen(path.c_str(), "wb"), &std::fclose) {
    if (file_ == nullptr) Fail();
  }
  void Write(std::span<const float> row) {
    if (std::fwrite(row.data(), sizeof(float), row.size(), file_.get()) != row.size()) Fail();
  }
  void Close() {
    if (std::fclose(file_.release()) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() const {
    throw Error(ErrorCode::kIo, "--logits " + path_ + ": cannot be written");
  }
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// The router's picks as JSON lines, for deltafin trace.
class PicksFile {
 public:
  explicit PicksFile(const std::string& path)
      : path_(path), file_(path, std::ios::binary | std::ios::trunc) {
    Check();
  }
  void Write(const RouterPicks& picks) {
    file_ << DumpJson({{"step", picks.position},
                       {"layer", picks.layer},
                       {"ids", std::vector<int32_t>(picks.ids.begin(), picks.ids.end())},
                       {"w", std::vector<float>(picks.weights.begin(), picks.weights.end())}})
          << '\n';
  }
  void Close() {
    file_.close();
    Check();
  }

 private:
  void Check() const {
    if (!file_) throw Error(ErrorCode::kIo, "--trace " + path_ + ": cannot be written");
  }
  std::string path_;
  std::ofstream file_;
};

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

double Rate(size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

void PrintTimings(const std::vector<TokenId>& prompt, const GenerateOptions& generate,
                  const GenerateResult& result) {
  if (result.draft_passes > 0) {
    std::fprintf(stderr, "%lld of %lld guessed tokens were right, in %lld passes\n",
                 static_cast<long long>(result.accepted_tokens),
                 static_cast<long long>(result.drafted_tokens),
                 static_cast<long long>(result.draft_passes));
  }
  if (generate.sampling.temperature > 0) {
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(generate.sampling.seed));
  }
  std::fprintf(stderr,
               "%zu prompt tokens in %.2f s (%.1f per second), %zu new tokens in %.2f s "
               "(%.1f per second), %s\n",
               prompt.size(), result.prefill_seconds, Rate(prompt.size(), result.prefill_seconds),
               result.tokens.size(), result.decode_seconds,
               Rate(result.tokens.size(), result.decode_seconds), FinishName(result.finish_reason));
}

Json LogprobsJson(const Tokenizer& tokenizer, const GenerateResult& result) {
  // Half a character has no spelling in JSON: its bytes come as U+FFFD.
  const auto spelling = [&](TokenId id) {
    StreamDecoder decoder;
    std::string text = decoder.Push(tokenizer.Bytes(id));
    return text + decoder.Finish();
  };
  Json positions = Json::array();
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    Json top = Json::array();
    for (const TokenLogprob& entry : result.logprobs[i].top) {
      top.push_back({{"id", entry.id}, {"token", spelling(entry.id)}, {"logprob", entry.logprob}});
    }
    positions.push_back({{"id", result.tokens[i]},
                         {"token", spelling(result.tokens[i])},
                         {"logprob", result.logprobs[i].chosen},
                         {"top", top}});
  }
  return positions;
}

double Percent(uint64_t part, uint64_t of) {
  return of > 0 ? 100 * static_cast<double>(part) / static_cast<double>(of) : 0;
}

void PrintExperts(const ExpertStoreCounters& counters) {
  std::fprintf(stderr,
               "experts: %.1f %% of %llu were in RAM (%.1f %% read ahead), %.2f GB read, %.2f s "
               "waited\n",
               Percent(counters.hits, counters.requested),
               static_cast<unsigned long long>(counters.requested),
               Percent(counters.ahead_hits, counters.requested),
               static_cast<double>(counters.bytes_read()) / 1e9, counters.wait_seconds);
}

Json ExpertsJson(const Engine& engine) {
  const ExpertStoreCounters all = engine.expert_counters();
  Json layers = Json::array();
  const std::vector<LayerExpertCounters> counters = engine.layer_expert_counters();
  for (size_t layer = 0; layer < counters.size(); ++layer) {
    const LayerExpertCounters& c = counters[layer];
    if (c.requested == 0) continue;
    layers.push_back({{"layer", layer},
                      {"requested", c.requested},
                      {"hits", c.hits},
                      {"ahead_hits", c.ahead_hits},
                      {"ahead_late", c.ahead_late},
                      {"foretold", c.foretold},
                      {"foretold_of", c.foretold_of},
                      {"wait_seconds", c.wait_seconds},
                      {"hints_on", c.hints_on}});
  }
  return {{"requested", all.requested},       {"hits", all.hits},
          {"ahead_hits", all.ahead_hits},     {"ahead_late", all.ahead_late},
          {"bytes_demand", all.bytes_demand}, {"bytes_ahead", all.bytes_ahead},
          {"bytes_wasted", all.bytes_wasted}, {"bytes_warm", all.bytes_warm},
          {"wait_seconds", all.wait_seconds}, {"layers", layers}};
}

void PrintJson(const Engine& engine, const std::vector<TokenId>& prompt,
               const GenerateOptions& generate, const GenerateResult& result, const Output& output,
               const std::optional<ProfileReport>& profile) {
  Json json{{"prompt_ids", prompt},
            {"ids", result.tokens},
            {"text", output.text()},
            {"reasoning", output.reasoning()},
            {"finish_reason", FinishName(result.finish_reason)}};
  if (!output.calls().empty()) {
    Json calls = Json::array();
    for (const ToolCall& call : output.calls()) {
      calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    }
    json["tool_calls"] = calls;
  }
  if (generate.sampling.temperature > 0) json["seed"] = generate.sampling.seed;
  if (generate.top_logprobs > 0) json["logprobs"] = LogprobsJson(engine.tokenizer(), result);
  json["drafts"] = {{"passes", result.draft_passes},
                    {"drafted_tokens", result.drafted_tokens},
                    {"accepted_tokens", result.accepted_tokens}};
  json["timings"] = {
      {"prefill_seconds", result.prefill_seconds},
      {"prefill_tokens_per_second", Rate(prompt.size(), result.prefill_seconds)},
      {"decode_seconds", result.decode_seconds},
      {"decode_tokens_per_second", Rate(result.tokens.size(), result.decode_seconds)}};
  json["experts"] = ExpertsJson(engine);
  if (profile) json["profile"] = profile->ToJson();
  std::cout << DumpJson(json) << std::endl;
}

// What this run adds to the conversation, and how its answer is read.
struct Turn {
  std::vector<TokenId> prompt;  // empty: the answer goes on
  std::unique_ptr<ChatParser> parser;
  bool chat = false;
  bool thinking = true;
};

Turn FirstTurn(const RunOptions& options, const std::string& text, ReasoningEffort effort,
               const Tokenizer& tokenizer) {
  Turn turn;
  turn.chat = options.chat;
  if (options.chat) {
    const RenderedChat chat = RenderSimpleChat({options.system, text, effort, Thinks(options)});
    turn.prompt = chat.Encode(tokenizer);
    turn.thinking = chat.thinking;
    turn.parser = ChatParser::Create(tokenizer, chat.thinking);
  } else {
    turn.prompt =
        options.ids.empty() ? tokenizer.Encode(text, Specials::kPlain) : ParseTokenIds(options.ids);
  }
  return turn;
}

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Turn NextTurn(const RunOptions& options, const std::string& text, const SavedRun& saved,
              const Session& session, const Engine& engine) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "--session: " + why);
  };
  if (!options.system.empty()) refuse("--system belongs to the first turn, this one has begun");
  if (options.chat && !saved.note.chat)
    refuse("it is a plain text, which --chat cannot go on with");
  if (!saved.note.chat && (options.no_think || !options.effort.empty()))
    refuse("it is a plain text, which --effort and --no-think say nothing about");
  // Later turns may only do without.
  if (!options.effort.empty() && options.effort != "none" &&
      options.effort != EffortName(saved.note.effort)) {
    refuse("--effort belongs to the first turn, this one has begun");
  }
  if (saved.note.chat && !options.ids.empty()) refuse("--ids does not go with a chat");
  const bool complete = Contains(engine.stop_tokens(), session.tokens().back());
  Turn turn;
  if (NumPrompts(options) == 0) {
    if (complete && !options.ignore_stop) refuse("the last answer is complete: pass a prompt");
    turn.chat = saved.note.chat;
    turn.thinking = saved.note.thinking;
    if (!saved.note.chat) return turn;
    // The parser must know what was said before the cut.
    turn.parser = ChatParser::Create(engine.tokenizer(), saved.note.thinking);
    const std::span<const TokenId> ids = session.tokens();
    for (TokenId id : ids.subspan(session.first_generated())) (void)turn.parser->Push(id);
    return turn;
  }
  if (saved.note.chat && !complete) {
    refuse("the last answer was cut off: let it finish first (the same command without a prompt)");
  }
  RunOptions next = options;
  next.chat = saved.note.chat;
  // The effort was stated in the first turn.
  turn = FirstTurn(next, text, ReasoningEffort::kNone, engine.tokenizer());
  // It would be as if there were none, and go on beyond the end of an answer.
  if (turn.prompt.empty()) refuse("the prompt is empty: expected at least one token");
  return turn;
}

// Without --seed a conversation keeps the seed that it began with.
void ShareSeed(const RunOptions& options, SavedRun& saved, GenerateOptions* generate) {
  if (saved.exists() && !options.sampling.seed.has_value())
    generate->sampling.seed = saved.note.seed;
  saved.note.seed = generate->sampling.seed;
}

int Run(const RunOptions& options) {
  EngineOptions engine_options = ToEngineOptions(options.model);
  engine_options.max_draft_tokens = MaxDraftTokens(options.sampling);
  std::optional<SavedRun> saved;
  if (!options.session.name.empty()) saved.emplace(options.session, engine_options.model_dir);
  const bool resumed = saved && saved->exists();
  const ReasoningEffort effort =
      options.effort.empty() ? ReasoningEffort::kMax : ParseEffort("--effort", options.effort);
  if (!resumed) CheckChatFlags(options);
  if (options.sampling.logprobs > 0 && !options.json) {
    throw Error(ErrorCode::kInvalidArgument, "--logprobs is for --json, which prints them");
  }
  const std::string text = resumed && NumPrompts(options) == 0 ? "" : PromptText(options);
  GenerateOptions generate;
  ApplySamplingFlags(options.sampling, &generate);
  for (const std::string& notice : EnvironmentNotices()) std::cerr << notice << "\n";
  CatchInterrupts();
  const double memory_rate =
      engine_options.profile ? MeasureMemoryBytesPerSecond(engine_options.threads) : 0;
  const auto engine = OpenEngine(options.model, engine_options);
  if (saved) saved->Own();
  std::optional<ProfileReport> profile;
  if (engine_options.profile) profile.emplace(*engine, memory_rate);

  const Tokenizer& tokenizer = engine->tokenizer();
  const auto session = engine->NewSession();
  if (resumed) saved->Restore(*session);
  Turn turn = resumed ? NextTurn(options, text, *saved, *session, *engine)
                      : FirstTurn(options, text, effort, tokenizer);
  const std::vector<TokenId>& prompt = turn.prompt;
  if (saved) {
    ShareSeed(options, *saved, &generate);
    saved->note.chat = turn.chat;
    saved->note.thinking = turn.thinking;
    if (!resumed) {
      saved->note.system = options.system;
      saved->note.effort = Thinks(options) ? effort : ReasoningEffort::kNone;
    } else if (!turn.prompt.empty()) {
      ++saved->note.turns;
    }
  }

  const auto cancelled = [] { return InterruptSignal() != 0; };
  Output output(tokenizer, std::move(turn.parser), !options.json);
  generate.stop_at_stop_tokens = !options.ignore_stop;
  // An answer ends by itself; a raw continuation need not.
  generate.max_new_tokens =
      options.max_new.value_or(turn.chat ? engine->info().context_tokens : kDefaultNewTokens);
  generate.cancelled = cancelled;
  const std::vector<TokenId>& stops = engine->stop_tokens();
  ProgressLine progress;
  generate.on_progress = [&](const PrefillProgress& now) { progress.Show(now); };
  int64_t num_rows = 0;
  generate.on_token = [&](TokenId id) {
    progress.Finish();
    if (profile) profile->EndRow(++num_rows == 1 ? "prompt" : "token " + std::to_string(num_rows));
    output.Push(id, !options.ignore_stop && Contains(stops, id));
    return !cancelled();
  };

  std::optional<PicksFile> picks;
  if (!options.trace.empty()) {
    picks.emplace(options.trace);
    session->SetOnRouterPicks([&](const RouterPicks& row) { picks->Write(row); });
  }
  std::span<const TokenId> unread = prompt;
  double logits_seconds = 0;
  if (!options.logits.empty()) {
    const auto start = std::chrono::steady_clock::now();
    LogitsFile file(options.logits);
    // The last token of an answer enters the state with the next prompt, and is none of it.
    const int64_t first = std::ssize(session->tokens());
    const auto write = [&](int64_t position, std::span<const float> row) {
      if (position >= first) file.Write(row);
    };
    // Without a prompt an answer goes on, which must not begin here.
    if (!prompt.empty()) session->Append(prompt, 0, write, cancelled);
    file.Close();
    unread = {};
    logits_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  GenerateResult result =
      saved ? saved->Generate(*session, unread, generate) : session->Generate(unread, generate);
  progress.Finish();
  result.prefill_seconds += logits_seconds;
  output.Finish();
  if (picks) picks->Close();
  if (profile) profile->EndRow("end");
  if (options.json) {
    PrintJson(*engine, prompt, generate, result, output, profile);
  } else {
    PrintTimings(prompt, generate, result);
    PrintExperts(engine->expert_counters());
    if (profile) profile->Print();
  }
  return result.finish_reason == FinishReason::kCancelled ? 128 + InterruptSignal() : 0;
}

}  // namespace

void AddRunCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("run", "Continue a text, or answer one question (--chat)");
  auto options = std::make_shared<RunOptions>();
  command->add_option("text", options->text, "The prompt, or - for standard input");
  command->add_option("--prompt", options->prompt, "The prompt")->type_name("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "A file with the prompt")
      ->type_name("FILE");
  command->add_option("--ids", options->ids, "The prompt as token ids: 1,2,3")->type_name("IDS");
  command->add_flag("--chat", options->chat, "Ask the prompt as a question in the chat format");
  command->add_option("--system", options->system, "System message (with --chat)")
      ->type_name("TEXT");
  command
      ->add_option("--effort", options->effort, "Thinking effort: none, low, high or max (default)")
      ->type_name("LEVEL");
  command->add_flag("--no-think", options->no_think, "Answer without thinking (with --chat)");
  command
      ->add_option("--max-new", options->max_new,
                   "At most so many new tokens (default: 256; --chat: until the answer ends)")
      ->type_name("N")
      ->transform(WholeNumber(0, int64_t{1} << 40));
  command->add_flag("--ignore-stop", options->ignore_stop,
                    "Go on after the end of the message or document");
  command
      ->add_option("--logits", options->logits,
                   "Write the logits of every prompt position: raw little-endian float32 "
                   "[positions, vocabulary]")
      ->type_name("FILE");
  command
      ->add_option("--trace", options->trace,
                   "Write what the router picked for every token, as JSON lines (deltafin trace)")
      ->type_name("FILE");
  command->add_flag("--json", options->json,
                    "One JSON object on stdout: prompt_ids, ids, text, reasoning, finish_reason, "
                    "timings, experts");
  AddProfileFlag(*command, &options->model);
  AddSamplingFlags(*command, &options->sampling);
  AddLogprobsFlag(*command, &options->sampling);
  AddSessionFlags(*command, &options->session);
  AddModelOptions(*command, &options->model);
  AddPreloadOption(*command, &options->model);
  command->callback([options, status] { *status = Run(*options); });
}

}  // namespace deltafin
