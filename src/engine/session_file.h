// The file that a session is saved in. Internal to engine/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltafin/types.h"
#include "io/file.h"
#include "io/hash.h"
#include "model/sequence_state.h"

namespace deltafin {

// What a state must have been computed with to be of use.
struct SessionOrigin {
  Hash128 model;
  CacheFormat cache_format = CacheFormat::kF32;
  std::string spine;  // at most 15 characters
};

// All but the state.
struct SessionContent {
  SessionOrigin origin;
  int64_t first_generated = 0;
  std::vector<TokenId> tokens;
  std::vector<float> last_logits;
  std::string note;  // the application's
};

enum class Durability : uint8_t { kSynced, kUnsynced };  // io/atomic_file.h
// The file is there whole or not at all. The state goes through a buffer: it is in memory once.
// `capture` as SequenceState::SaveTo. Throws Error(kIo).
void WriteSessionFile(const std::string& path, const SessionContent& content,
                      const SequenceState& state, Durability durability,
                      const StateCapture* capture = nullptr);

// A file all of whose bytes were checked.
class SessionReader {
 public:
  // Checks everything that can be checked without a model. Throws Error(kNotFound),
  // Error(kCorrupt), or Error(kUnsupported) for a later version.
  explicit SessionReader(const std::string& path);

  const SessionContent& content() const { return content_; }
  // Throws Error(kIo), or Error(kInvalidArgument) when it does not fit `state`, which is then as it
  // was.
  void ReadState(SequenceState& state) const;

 private:
  std::unique_ptr<ReadableFile> file_;
  SessionContent content_;
  uint64_t state_at_ = 0;  // in the file
  uint64_t state_bytes_ = 0;
};

// What a file holds beside the state, checked as far as its header goes. Errors as SessionReader.
SessionContent PeekSession(const std::string& path);

struct SessionFileSummary {
  SessionOrigin origin;
  int64_t num_tokens = 0;
  int64_t first_generated = 0;
  uint64_t bytes = 0;
};
// Reads and checks the header only. Errors as above.
SessionFileSummary ReadSessionSummary(const std::string& path);

// Throws Error(kInvalidArgument) saying what differs.
void CheckSameOrigin(const std::string& path, const SessionOrigin& saved,
                     const SessionOrigin& wanted);

}  // namespace deltafin
