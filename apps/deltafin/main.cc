// deltafin: the complete Kimi K3 on one ordinary computer.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <new>
#include <system_error>

#include "command_line.h"
#include "deltafin/error.h"
#include "descriptors.h"
#include "environment.h"
#include "interrupt.h"

namespace deltafin {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
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
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) throw Error(ErrorCode::kIo, path + ": reading failed");
  return text;
}

}  // namespace deltafin

int main(int argc, char** argv) {
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
