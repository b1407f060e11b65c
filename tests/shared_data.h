// Where tests find data: what belongs to the project lies in tests/data; reference data that may
// not be copied into it lies in the folder "shared" beside the repository, and tests that need it
// skip where it is absent.
#pragma once

#include <filesystem>
#include <string>

namespace deltafin {

inline std::string DataPath(const std::string& name) {
  return std::string(DELTAFIN_SOURCE_DIR) + "/tests/data/" + name;
}

inline std::string NanoDir() { return std::string(DELTAFIN_SOURCE_DIR) + "/models/k3-nano"; }

// "" when the folder is absent.
inline std::string SharedPath(const std::string& name) {
  const std::string path = std::string(DELTAFIN_SOURCE_DIR) + "/../shared/" + name;
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace deltafin

// At the start of a test: SHARED_OR_SKIP(path, "tokenizer/tiktoken.model");
#define SHARED_OR_SKIP(variable, name)                       \
  const std::string variable = ::deltafin::SharedPath(name); \
  if (variable.empty()) GTEST_SKIP() << "needs ../shared/" << (name) << " (not part of the project)"
