// deltafin render: an OpenAI chat request to the prompt that the model sees.
#include <unistd.h>

#include <iostream>

#include "chat/printable.h"
#include "command_line.h"
#include "deltafin/chat.h"
#include "deltafin/json.h"
#include "model_options.h"

namespace deltafin {
namespace {

struct RenderOptions {
  std::string vocab;
  std::string file;
  bool json = false;
};

int Render(const RenderOptions& options) {
  const auto tokenizer = Tokenizer::Load(options.vocab.empty() ? DefaultModelDir() : options.vocab);
  const RenderedChat chat = RenderChat(ReadTextFile(options.file));
  const std::vector<TokenId> ids = chat.Encode(*tokenizer);
  if (options.json) {
    Json segments = Json::array();
    for (const Segment& segment : chat.segments) {
      segments.push_back({segment.text, segment.specials == Specials::kAllowed});
    }
    std::cout << DumpJson({{"text", chat.Text()}, {"ids", ids}, {"segments", segments}}) << "\n";
    return 0;
  }
  const std::string text = chat.Text();
  std::cout << (isatty(STDOUT_FILENO) != 0 ? Printable(text) : text) << "\n";
  for (size_t i = 0; i < ids.size(); ++i) std::cout << (i == 0 ? "" : " ") << ids[i];
  std::cout << "\n";
  return 0;
}

}  // namespace

void AddRenderCommand(CLI::App& app, int* status) {
  CLI::App* command =
      app.add_subcommand("render", "An OpenAI chat request (JSON) to prompt text and token ids");
  auto options = std::make_shared<RenderOptions>();
  command
      ->add_option("file", options->file,
                   "The request: messages, tools, reasoning_effort, tool_choice, "
                   "response_format; - for standard input")
      ->required();
  command
      ->add_option("--vocab", options->vocab,
                   "Folder with tiktoken.model and tokenizer_config.json (default: as --model)")
      ->type_name("DIR");
  command->add_flag("--json", options->json, "One JSON object: text, ids, segments");
  command->callback([options, status] { *status = Render(*options); });
}

}  // namespace deltafin
