// deltafin tokenize: text to token ids and back.
#include <unistd.h>

#include <iostream>

#include "chat/printable.h"
#include "command_line.h"
#include "deltafin/json.h"
#include "deltafin/tokenizer.h"
#include "model_options.h"
#include "token_ids.h"

namespace deltafin {
namespace {

struct TokenizeOptions {
  std::string vocab;
  std::string text;
  bool specials = false;
  bool json = false;
  bool decode = false;
};

// Bytes that are no whole character, which one token may be, become U+FFFD.
std::string AsText(std::string_view bytes) {
  StreamDecoder decoder;
  std::string text = decoder.Push(bytes);
  return text + decoder.Finish();
}

int Tokenize(const TokenizeOptions& options) {
  const auto tokenizer = Tokenizer::Load(options.vocab.empty() ? DefaultModelDir() : options.vocab);
  const std::string input = options.text == "-" ? ReadTextFile("-") : options.text;
  const std::vector<TokenId> ids =
      options.decode
          ? ParseTokenIds(input)
          : tokenizer->Encode(input, options.specials ? Specials::kAllowed : Specials::kPlain);
  const std::string text = options.decode ? tokenizer->Decode(ids) : input;
  if (options.json) {
    Json tokens = Json::array();
    for (TokenId id : ids) tokens.push_back(AsText(tokenizer->Bytes(id)));
    std::cout << DumpJson({{"ids", ids}, {"tokens", tokens}, {"text", AsText(text)}}) << "\n";
  } else if (options.decode) {
    std::cout << (isatty(STDOUT_FILENO) != 0 ? Printable(AsText(text)) : text);
    if (text.empty() || text.back() != '\n') std::cout << "\n";
  } else {
    for (size_t i = 0; i < ids.size(); ++i) std::cout << (i == 0 ? "" : " ") << ids[i];
    std::cout << "\n";
  }
  return 0;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("tokenize", "Text to token ids, or back with --decode");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("text", options->text, "The text, or - for standard input")->required();
  command
      ->add_option("--vocab", options->vocab,
                   "Folder with tiktoken.model and tokenizer_config.json (default: as --model)")
      ->type_name("DIR");
  command->add_flag("--specials", options->specials,
                    "Spellings of special tokens become those tokens");
  command->add_flag("--decode", options->decode, "TEXT is token ids; prints their text");
  command->add_flag("--json", options->json, "One JSON object: ids, tokens, text");
  command->callback([options, status] { *status = Tokenize(*options); });
}

}  // namespace deltafin
