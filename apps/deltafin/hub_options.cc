#include "hub_options.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "environment.h"
#include "flag_checks.h"
#include "hub/double_text.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

// As the tools of the hub read a switch.
bool IsOn(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

std::string Trimmed(std::string text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  return text;
}

fs::path TokenFile() {
  if (const std::string path = Environment("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = Environment("HF_HOME"); !home.empty())
    return fs::path(home) / "token";
  if (const std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface/token";
  }
  const std::string home = Environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache/huggingface/token";
}

std::string Token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = Trimmed(Environment(name)); !token.empty()) return token;
  }
  if (IsOn(Environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return "";
  const fs::path path = TokenFile();
  std::error_code ignored;
  if (path.empty() || !fs::is_regular_file(path, ignored)) return "";
  return Trimmed(ReadTextFile(path.string()));
}

}  // namespace

HubOptions HubOptionsFromEnvironment() {
  HubOptions options;
  if (const std::string endpoint = Environment("HF_ENDPOINT"); !endpoint.empty()) {
    options.endpoint = endpoint;
  }
  if (const std::string host = Environment("K3_HF_HOST"); !host.empty()) {
    options.endpoint = host.find("://") == std::string::npos ? "https://" + host : host;
  }
  options.path = Environment("K3_HF_PATH");
  options.token = Token();
  options.offline = IsOn(Environment("HF_HUB_OFFLINE"));
  for (const char* name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (options.ca_bundle.empty()) options.ca_bundle = Environment(name);
  }
  return options;
}

void AddFolderFlags(CLI::App& command, HubFlags* flags) {
  command
      .add_option("--dir", flags->dir,
                  "Folder of the model (default: DELTAFIN_ROOT/Kimi-K3, else ~/Kimi-K3)")
      ->type_name("DIR");
  AllowRepeats(
      command
          .add_option(
              "--also", flags->also,
              "Another folder, on another disk, with some of the shards; may be given again")
          ->type_name("DIR"));
}

void AddHubFlags(CLI::App& command, HubFlags* flags) {
  AddFolderFlags(command, flags);
  command
      .add_option("--revision", flags->revision,
                  std::string("Commit or branch on the hub (default: what the folder has, else ") +
                      kPinnedRevision + ")")
      ->type_name("REV");
  command.add_option("--jobs", flags->jobs, "Connections (default: 8)")
      ->type_name("N")
      ->transform(WholeNumber(1, 256));
  command.add_option("--limit-rate", flags->limit_rate, "At most so much per second, e.g. 20M")
      ->type_name("SIZE");
}

HubOptions ToHubOptions(const HubFlags& flags) {
  HubOptions options = HubOptionsFromEnvironment();
  options.revision = flags.revision;
  if (flags.jobs > 0) options.jobs = flags.jobs;
  if (!flags.limit_rate.empty()) {
    options.bytes_per_second = ParseDiskBytes("--limit-rate", flags.limit_rate);
  }
  return options;
}

std::string InstallDir(const HubFlags& flags) {
  if (!flags.dir.empty()) return flags.dir;
  if (const std::string root = Environment("DELTAFIN_ROOT"); !root.empty()) {
    return (fs::path(root) / "Kimi-K3").string();
  }
  const std::string home = Environment("HOME");
  if (home.empty()) throw Error(ErrorCode::kInvalidArgument, "pass --dir DIR: there is no HOME");
  return (fs::path(home) / "Kimi-K3").string();
}

uint64_t ParseDiskBytes(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = DoubleFromText(text, value);
  std::string unit(end, text.data() + text.size());
  const bool binary = unit.ends_with("iB");
  if (binary) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with("B")) {
    unit.pop_back();
  }
  constexpr std::string_view kUnits = "KMGT";
  double scale = 1;
  if (!unit.empty()) {
    const size_t power =
        kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    scale = unit.size() > 1 || power == std::string_view::npos
                ? 0
                : std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const double bytes = value * scale;
  if (error != std::errc() || scale == 0 || !(bytes >= 0) || bytes > 1e18) {
    throw Error(ErrorCode::kInvalidArgument,
                flag + ": expected a size like 500G, 20M or 1.5T, got \"" + text + "\"");
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace deltafin
