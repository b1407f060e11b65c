#include "model_options.h"

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <mutex>

#include "deltafin/hub.h"
#include "environment.h"
#include "flag_checks.h"
#include "hub/double_text.h"
#include "hub_options.h"
#include "interrupt.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

CacheFormat ParseCache(const std::string& text) {
  if (text == "f32") return CacheFormat::kF32;
  if (text == "bf16") return CacheFormat::kBf16;
  throw Error(ErrorCode::kInvalidArgument, "--cache: expected f32 or bf16, got \"" + text + "\"");
}

// Settings for other programs of this kind say 0 and 1.
Prefetch ParsePrefetch(const std::string& text) {
  if (text == "auto" || text == "on" || text == "1") return Prefetch::kAuto;
  if (text == "off" || text == "0") return Prefetch::kOff;
  throw Error(ErrorCode::kInvalidArgument,
              "--prefetch: expected auto or off, got \"" + text + "\"");
}

Numerics ParseNumerics(const std::string& text) {
  if (text == "exact") return Numerics::kExact;
  if (text == "approx") return Numerics::kApprox;
  if (!text.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--numerics: expected exact or approx, got \"" + text + "\"");
  }
  const std::string approx = Environment("K3_APPROX");
  return approx.empty() || approx == "0" ? Numerics::kExact : Numerics::kApprox;
}

bool ParseSwitch(const std::string& flag, const std::string& text) {
  if (text == "on" || text == "1") return true;
  if (text == "off" || text == "0") return false;
  throw Error(ErrorCode::kInvalidArgument, flag + ": expected on or off, got \"" + text + "\"");
}

int64_t ParsePinLayers(const std::string& text) {
  if (text == "auto") return -1;
  int64_t layers = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, layers);
  if (error == std::errc() && stop == end && layers >= 0) return layers;
  throw Error(ErrorCode::kInvalidArgument,
              "--pin-layers: expected auto or a number of layers, got \"" + text + "\"");
}

// Settings for other programs of this kind say mps and cuda.
void ParseDevice(const std::string& text, EngineOptions* engine) {
  engine->device = DeviceChoice::kGpu;
  if (text == "auto") {
    engine->device = DeviceChoice::kAuto;
  } else if (text == "cpu") {
    engine->device = DeviceChoice::kCpu;
  } else if (text.starts_with("gpu:")) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 4, end, engine->gpu_number);
    if (error == std::errc() && stop == end && engine->gpu_number >= 0) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "--device: expected gpu:N with a number that deltafin info --devices lists, got \"" + text +
            "\"");
  } else if (text != "gpu" && text != "mps" && text != "cuda") {
    throw Error(ErrorCode::kInvalidArgument,
                "--device: expected auto, cpu, gpu or gpu:N, got \"" + text + "\"");
  }
}

}  // namespace

uint64_t ParseBytes(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = DoubleFromText(text, value);
  std::string unit(end, text.data() + text.size());
  for (const char* suffix : {"iB", "B"}) {
    if (unit.ends_with(suffix)) {
      unit.resize(unit.size() - std::string(suffix).size());
      break;
    }
  }
  double scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "K" || unit == "k") scale = std::ldexp(1.0, 10);
  if (unit == "M" || unit == "m") scale = std::ldexp(1.0, 20);
  if (unit == "G" || unit == "g") scale = std::ldexp(1.0, 30);
  if (unit == "T" || unit == "t") scale = std::ldexp(1.0, 40);
  const double bytes = value * scale;
  if (error != std::errc() || scale == 0 || !(bytes >= 1) || bytes > std::ldexp(1.0, 60)) {
    throw Error(ErrorCode::kInvalidArgument,
                flag + ": expected a size like 8G, 512M or 1.5G, got \"" + text + "\"");
  }
  return static_cast<uint64_t>(bytes);
}

namespace {

// K3_RAM_GB, which has no unit.
uint64_t ParseGigabytes(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, error] = DoubleFromText(text, value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0) {
    return ParseBytes(name, text + "G");
  }
  throw Error(ErrorCode::kInvalidArgument,
              name + ": expected a number of gigabytes like 8 or 1.5, got \"" + text + "\"");
}

}  // namespace

SpineFormat ParseSpine(const std::string& text) {
  if (text == "auto") return SpineFormat::kAuto;
  if (text == "bf16") return SpineFormat::kBf16;
  if (text == "int8") return SpineFormat::kInt8;
  throw Error(ErrorCode::kInvalidArgument,
              "--spine: expected auto, bf16 or int8, got \"" + text + "\"");
}

namespace {

// Empty where the system does not tell.
fs::path ProgramPath() {
  std::error_code ignored;
#if defined(__APPLE__)
  char path[4096];
  uint32_t bytes = sizeof(path);
  return _NSGetExecutablePath(path, &bytes) == 0 ? fs::canonical(path, ignored) : fs::path();
#else
  return fs::read_symlink("/proc/self/exe", ignored);
#endif
}

}  // namespace

std::string BundledModelDir() {
  const fs::path program = ProgramPath();
  // Beside a build folder of the repository, or in the share folder of an installation.
  for (const char* relative :
       {"../../models/k3-nano", "../../../models/k3-nano", "../share/deltafin/models/k3-nano"}) {
    const fs::path dir = (program.parent_path() / relative).lexically_normal();
    if (fs::exists(dir / "config.json")) return dir.string();
  }
  return "";
}

std::string DefaultModelDir() {
  if (const std::string root = Environment("DELTAFIN_ROOT"); !root.empty()) {
    const fs::path dir = fs::path(root) / "Kimi-K3";
    if (fs::exists(dir / "config.json")) return dir.string();
    static std::once_flag said;
    std::call_once(said, [&dir] {
      std::cerr << "DELTAFIN_ROOT has no effect: there is no " << (dir / "config.json").string()
                << "\n";
    });
  }
  std::string bundled = BundledModelDir();
  if (!bundled.empty()) return bundled;
  throw Error(ErrorCode::kNotFound,
              "no model: the k3-nano that comes with the program was not found beside it; pass "
              "--model DIR (--vocab DIR to tokenize and render), or set DELTAFIN_ROOT to the "
              "folder that holds Kimi-K3");
}

void AddModelOptions(CLI::App& command, ModelOptions* options) {
  command
      .add_option("--model", options->model,
                  "Folder of the checkpoint (default: DELTAFIN_ROOT/Kimi-K3, else the bundled "
                  "k3-nano)")
      ->type_name("DIR");
  command
      .add_option("--ram", options->ram,
                  "Memory that may be used, e.g. 8G (default: what the machine and its cgroups "
                  "allow, less a reserve; K3_RAM_GB)")
      ->type_name("SIZE");
  command
      .add_option("--context", options->context,
                  "Tokens that a conversation may hold (default: 8192)")
      ->type_name("N")
      ->transform(WholeNumber(1, int64_t{1} << 30));
  command
      .add_option("--cache", options->cache,
                  "Latent cache of the attention: f32 (default, no rounding) or bf16 (half the "
                  "memory)")
      ->type_name("FORMAT");
  command
      .add_option("--context-in-ram", options->context_in_ram,
                  "Of the latent caches so much stays in RAM, e.g. 4G; longer contexts are kept in "
                  "a file and read again for every token (default: all in RAM)")
      ->type_name("SIZE");
  command
      .add_option("--spill-dir", options->spill_dir,
                  "Folder of that file, which has no name and goes away with the program (default: "
                  "MODEL/.deltafin)")
      ->type_name("DIR");
  command.add_option("--threads", options->threads, "Compute threads (default: all processors)")
      ->type_name("N")
      ->transform(WholeNumber(1, 1024));
  command
      .add_option("--device", options->device,
                  "cpu, gpu, gpu:N (deltafin info --devices) or auto: a GPU with memory of its own "
                  "that computes what the CPU computes, if there is one (K3_DEV)")
      ->type_name("NAME")
      ->envname("K3_DEV");
  command
      .add_option(
          "--gpu-ram", options->gpu_ram,
          "Memory of the GPU that weights may take, e.g. 20G (default: what is free, less 2 "
          "GiB or a tenth)")
      ->type_name("SIZE");
  command
      .add_option(
          "--spine", options->spine,
          "bf16 (as released), int8 (deltafin convert spine; other bits) or auto: int8 when "
          "it is there (K3_SPINE)")
      ->type_name("NAME")
      ->envname("K3_SPINE");
  command
      .add_option("--numerics", options->numerics,
                  "exact (default) or approx: other arithmetic where that is faster, which it is "
                  "not on a CPU (K3_APPROX=1)")
      ->type_name("NAME");
  command
      .add_option("--prefetch", options->prefetch,
                  "Reading experts before the router has picked them: auto (default) or off; never "
                  "changes a result (K3_PREFETCH)")
      ->type_name("WHEN")
      ->envname("K3_PREFETCH");
  AddAlsoOption(command, &options->also);
  command
      .add_option("--pin-layers", options->pin_layers,
                  "At most so many layers' worth of the spine stays in RAM, the rest of it is for "
                  "experts; or auto (K3_PIN_LAYERS)")
      ->type_name("N")
      ->envname("K3_PIN_LAYERS");
  command
      .add_option("--isa", options->isa,
                  "Kernels: plain, avx2, avx512 or neon (default: the best; all give the same "
                  "bits)")
      ->type_name("NAME");
}

void AddAlsoOption(CLI::App& command, std::vector<std::string>* folders) {
  AllowRepeats(
      command
          .add_option(
              "--also", *folders,
              "Another folder, on another disk, with some of the shards; may be given again: "
              "all disks are read at once")
          ->type_name("DIR"));
}

void AddPreloadOption(CLI::App& command, ModelOptions* options) {
  command
      .add_option("--preload", options->preload,
                  "on: read what stays in RAM before the first token (default: off; K3_PRELOAD)")
      ->type_name("WHEN")
      ->envname("K3_PRELOAD");
}

void AddProfileFlag(CLI::App& command, ModelOptions* options) {
  command.add_flag("--profile", options->profile,
                   "Say where the time and the bytes of each pass went (K3_PROFILE=1)");
}

EngineOptions ToEngineOptions(const ModelOptions& options, const std::function<bool()>& cancelled) {
  EngineOptions engine;
  engine.model_dir = options.model.empty() ? DefaultModelDir() : options.model;
  engine.threads = options.threads;
  engine.context_tokens = options.context;
  engine.cache_format = ParseCache(options.cache);
  if (!options.context_in_ram.empty()) {
    engine.context_ram_bytes = ParseBytes("--context-in-ram", options.context_in_ram);
  }
  engine.spill_dir = options.spill_dir;
  engine.spine = ParseSpine(options.spine);
  engine.numerics = ParseNumerics(options.numerics);
  engine.cpu_isa = options.isa;
  engine.prefetch = ParsePrefetch(options.prefetch);
  engine.also_dirs = options.also;
  engine.pin_layers = ParsePinLayers(options.pin_layers);
  const std::string profile = Environment("K3_PROFILE");
  engine.profile = options.profile || (!profile.empty() && profile != "0");
  engine.on_notice = [](const std::string& notice) { std::cerr << notice + "\n"; };
  ParseSwitch("--preload", options.preload);
  ParseDevice(options.device, &engine);
  if (!options.gpu_ram.empty()) engine.gpu_bytes = ParseBytes("--gpu-ram", options.gpu_ram);
  if (!options.ram.empty()) {
    engine.ram_bytes = ParseBytes("--ram", options.ram);
  } else if (const std::string gb = Environment("K3_RAM_GB"); !gb.empty()) {
    engine.ram_bytes = ParseGigabytes("K3_RAM_GB", gb);
  }
  HubOptions hub = HubOptionsFromEnvironment();
  hub.cancelled = cancelled;
  engine.source = MakeHubSource(hub, engine.model_dir);
  return engine;
}

std::unique_ptr<Engine> OpenEngine(const ModelOptions& options, const EngineOptions& engine) {
  std::unique_ptr<Engine> opened = Engine::Open(engine);
  Introduce(options, *opened);
  return opened;
}

void Introduce(const ModelOptions& options, Engine& engine) {
  for (const std::string& line : engine.Describe()) std::cerr << line << "\n";
  if (!ParseSwitch("--preload", options.preload)) return;
  engine.Preload([] { return !IsInterrupted(); });
}

}  // namespace deltafin
