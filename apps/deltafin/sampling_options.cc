#include "sampling_options.h"

#include <charconv>
#include <random>

#include "flag_checks.h"
#include "hub/double_text.h"

namespace deltafin {
namespace {

std::pair<TokenId, double> ParseBias(const std::string& text) {
  TokenId id = 0;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [colon, id_error] = std::from_chars(text.data(), end, id);
  if (id_error == std::errc() && colon != end && *colon == ':') {
    const auto [rest, error] = DoubleFromText({colon + 1, end}, value);
    if (error == std::errc() && rest == end) return {id, value};
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--logit-bias: expected ID:VALUE such as 42:-5, got \"" + text + "\"");
}

// 32 bits, so that it is easy to copy.
uint64_t FreshSeed() { return std::random_device{}(); }

}  // namespace

void AddSamplingFlags(CLI::App& command, SamplingFlags* flags) {
  SamplingOptions& values = flags->values;
  const auto number = [&](const char* name, double* value, const char* help) {
    command.add_option(name, *value, help)->type_name("X")->check(Number())->group("Sampling");
  };
  number("--temperature", &values.temperature,
         "0: always the most likely token (default); 1: as the model says; more: more varied");
  number("--top-p", &values.top_p, "Keep the most likely tokens that have this probability");
  number("--min-p", &values.min_p, "Keep tokens that have this part of the highest probability");
  number("--repetition-penalty", &values.repetition_penalty,
         "Divides the logit of every token of the text so far (default: 1)");
  number("--presence-penalty", &values.presence_penalty,
         "Taken from the logit of every token of the answer so far (default: 0)");
  number("--frequency-penalty", &values.frequency_penalty,
         "The same, times how often it occurs (default: 0)");
  command.add_option("--top-k", values.top_k, "Keep so many of the most likely tokens (0: all)")
      ->type_name("N")
      ->transform(WholeNumber())
      ->group("Sampling");
  AllowRepeats(command
                   .add_option("--logit-bias", flags->logit_bias,
                               "Added to the logit of a token, -100 to 100; may be repeated")
                   ->type_name("ID:VALUE")
                   ->group("Sampling"));
  command
      .add_option("--seed", flags->seed,
                  "The same seed gives the same text (default: another one in every run)")
      ->type_name("N")
      ->transform(SeedNumber())
      ->group("Sampling");
  command
      .add_option("--spec", flags->spec,
                  "Guess tokens that the text repeats and check several in one pass, which never "
                  "changes the text: auto (default: when it pays), off, or always up to N (1 to 8; "
                  "K3_SPEC)")
      ->type_name("MODE")
      ->envname("K3_SPEC");
}

void AddLogprobsFlag(CLI::App& command, SamplingFlags* flags) {
  command
      .add_option("--logprobs", flags->logprobs,
                  "With --json: log probabilities of the N most likely tokens at every position")
      ->type_name("N")
      ->transform(WholeNumber())
      ->group("Sampling");
}

int64_t MaxDraftTokens(const SamplingFlags& flags) {
  if (flags.spec == "auto") return kAutoDraft;
  if (flags.spec == "off" || flags.spec == "0") return 0;
  int64_t tokens = 0;
  const char* const end = flags.spec.data() + flags.spec.size();
  const auto [rest, error] = std::from_chars(flags.spec.data(), end, tokens);
  if (error == std::errc() && rest == end && tokens >= 1 && tokens <= 8) return tokens;
  throw Error(ErrorCode::kInvalidArgument,
              "--spec: expected auto, off or a number from 1 to 8, got \"" + flags.spec + "\"");
}

void ApplySamplingFlags(const SamplingFlags& flags, GenerateOptions* options) {
  options->sampling = flags.values;
  for (const std::string& text : flags.logit_bias) {
    options->sampling.logit_bias.push_back(ParseBias(text));
  }
  options->sampling.seed = flags.seed.has_value() ? *flags.seed : FreshSeed();
  options->top_logprobs = flags.logprobs;
  options->draft_tokens = MaxDraftTokens(flags);
}

}  // namespace deltafin
