// The file that a session is saved in. Internal to engine/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltafin/types.h"
#include "io/hash.h"

namespace deltafin {

// What a state must have been computed with to be of use.
struct SessionOrigin {
  Hash128 model;
  CacheFormat cache_format = CacheFormat::kF32;
  std::string spine;  // at most 15 characters
};

struct SessionContent {
  SessionOrigin origin;
  int64_t first_generated = 0;
  std::vector<TokenId> tokens;
  std::vector<float> last_logits;
  std::string note;  // the application's
  std::vector<std::byte> state;
};

// The file is there whole or not at all. Throws Error(kIo).
void WriteSessionFile(const std::string& path, const SessionContent& content);

// Checks everything that can be checked without a model. Throws Error(kNotFound), Error(kCorrupt),
// or Error(kUnsupported) for a later version.
SessionContent ReadSessionFile(const std::string& path);

struct SessionFileSummary {
  SessionOrigin origin;
  int64_t num_tokens = 0;
  uint64_t bytes = 0;
};
// Reads and checks the header only. Errors as above.
SessionFileSummary ReadSessionSummary(const std::string& path);

// Throws Error(kInvalidArgument) saying what differs.
void CheckSameOrigin(const std::string& path, const SessionOrigin& saved,
                     const SessionOrigin& wanted);

}  // namespace deltafin
