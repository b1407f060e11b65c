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
  return notices;
}

}  // namespace deltafin
