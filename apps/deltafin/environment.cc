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
  if (const std::string approx = Environment("K3_APPROX"); !approx.empty() && approx != "0") {
    notices.push_back("K3_APPROX has no effect: this version computes exactly only");
  }
  return notices;
}

}  // namespace deltafin
