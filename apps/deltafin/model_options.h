// The flags that say which model to open and with what.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "deltafin/engine.h"
#include "interrupt.h"

namespace deltafin {

// Values of the flags; strings are checked by ToEngineOptions.
struct ModelOptions {
  std::string model;
  std::vector<std::string> also;
  std::string ram;
  std::string cache = "f32";
  std::string context_in_ram;
  std::string spill_dir;
  std::string device = "auto";
  std::string gpu_ram;
  std::string spine = "auto";
  std::string numerics;  // "": as K3_APPROX says
  std::string prefetch = "auto";
  std::string isa;
  std::string pin_layers = "auto";
  std::string preload = "off";
  bool profile = false;
  int threads = 0;
  int64_t context = 0;
};

// Adds the flags to a subcommand; environment names give their defaults.
void AddModelOptions(CLI::App& command, ModelOptions* options);

// --also, which may be given again.
void AddAlsoOption(CLI::App& command, std::vector<std::string>* folders);

// Throws Error(kInvalidArgument).
SpineFormat ParseSpine(const std::string& text);

// --preload, for commands that generate text for somebody: the others measure the first use too.
void AddPreloadOption(CLI::App& command, ModelOptions* options);

// --profile, for commands that report it.
void AddProfileFlag(CLI::App& command, ModelOptions* options);

// `cancelled`: as HubOptions. Throws Error(kInvalidArgument or kUnsupported) naming the flag.
EngineOptions ToEngineOptions(const ModelOptions& options,
                              const std::function<bool()>& cancelled = IsInterrupted);

// Says on stderr what an engine chose, and reads what --preload asks for.
void Introduce(const ModelOptions& options, Engine& engine);
// Opens the model and introduces it.
std::unique_ptr<Engine> OpenEngine(const ModelOptions& options, const EngineOptions& engine);
// "8G", "512M", "1.5G", "2GiB", or plain bytes; G and GB count in 2^30 as RAM is sold. Throws
// Error(kInvalidArgument) naming the flag.
uint64_t ParseBytes(const std::string& flag, const std::string& text);

// The k3-nano that comes with the program; "" where it is not beside it.
std::string BundledModelDir();

// DELTAFIN_ROOT/Kimi-K3 if it is there, else the k3-nano that comes with the program. Throws
// Error(kNotFound) when neither is.
std::string DefaultModelDir();

}  // namespace deltafin
