// deltafin completion and deltafin man: what the program says of itself to shells and to man.
#include <iostream>

#include "../command_line.h"
#include "completion_scripts.h"
#include "man_page.h"

namespace deltafin {

void AddCompletionCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("completion", "A completion script for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "The shell to write it for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: deltafin completion bash > ~/.local/share/bash-completion/completions/deltafin\n"
      "zsh:  deltafin completion zsh > a folder of $fpath, as _deltafin\n"
      "fish: deltafin completion fish > ~/.config/fish/completions/deltafin.fish\n");
  command->callback([&app, shell, status] {
    const CommandEntry program = ReadCommandTree(app);
    std::cout << (*shell == "bash"  ? BashCompletion(program)
                  : *shell == "zsh" ? ZshCompletion(program)
                                    : FishCompletion(program));
    *status = 0;
  });
}

void AddManCommand(CLI::App& app, int* status) {
  CLI::App* command = app.add_subcommand("man", "The manual page, for man -l -");
  command->callback([&app, status] {
    std::cout << ManPage(ReadCommandTree(app), DELTAFIN_VERSION);
    *status = 0;
  });
}

}  // namespace deltafin
