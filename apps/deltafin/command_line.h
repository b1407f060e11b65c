// CLI11 for the commands, with warnings that are not ours switched off.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <CLI/CLI.hpp>  // IWYU pragma: export
#pragma GCC diagnostic pop

#include <string>

namespace deltafin {

// Each adds one subcommand. A command's return value is the exit status; it may throw Error.
void AddRunCommand(CLI::App& app, int* status);
void AddChatCommand(CLI::App& app, int* status);
void AddServeCommand(CLI::App& app, int* status);
void AddTokenizeCommand(CLI::App& app, int* status);
void AddRenderCommand(CLI::App& app, int* status);
void AddSessionsCommand(CLI::App& app, int* status);
void AddInfoCommand(CLI::App& app, int* status);
void AddConvertCommand(CLI::App& app, int* status);
void AddBenchCommand(CLI::App& app, int* status);
void AddQualityCommand(CLI::App& app, int* status);
void AddTraceCommand(CLI::App& app, int* status);
void AddSynthCommand(CLI::App& app, int* status);
void AddSetupCommand(CLI::App& app, int* status);
void AddVerifyCommand(CLI::App& app, int* status);
void AddWarmCommand(CLI::App& app, int* status);
void AddCleanCommand(CLI::App& app, int* status);
void AddCompletionCommand(CLI::App& app, int* status);
void AddManCommand(CLI::App& app, int* status);

// The text of an argument, a file or, for "-", standard input. Throws Error.
std::string ReadTextFile(const std::string& path_or_dash);

}  // namespace deltafin
