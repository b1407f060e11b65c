#include "environment.h"

#include <cstdlib>

namespace deltafin {
namespace {

struct Unused {
  const char* name;
  const char* why;
};

// Read by other engines of this model; nothing here depends on them.
constexpr Unused kUnused[] = {
    {"K3_TEMPLATES", "means nothing any more: the chat format is built in"},
    {"K3_PRELOAD", "has no effect: what fits the memory plan is kept in RAM once it was read"},
    {"K3_PIN_LAYERS", "has no effect: the memory plan (--ram) decides which layers stay in RAM"},
    {"K3_PROFILE", "has no effect: this version has no profile"},
    {"K3_HF_HOST", "has no effect: this version fetches nothing"},
    {"K3_HF_PATH", "has no effect: this version fetches nothing"},
};

}  // namespace

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> EnvironmentNotices() {
  std::vector<std::string> notices;
  for (const Unused& variable : kUnused) {
    if (Environment(variable.name).empty()) continue;
    notices.push_back(std::string(variable.name) + " " + variable.why);
  }
  if (const std::string approx = Environment("K3_APPROX"); !approx.empty() && approx != "0") {
    notices.push_back("K3_APPROX has no effect: this version computes exactly only");
  }
  return notices;
}

}  // namespace deltafin
