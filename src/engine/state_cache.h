// States of texts that later texts may begin with, kept in RAM while there is room and in files.
// Internal to engine/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deltafin/types.h"
#include "engine/session_file.h"
#include "io/atomic_file.h"
#include "model/sequence_state.h"
#include "model/state_capture.h"

namespace deltafin {

// What a kept state is the state of.
struct KeptText {
  std::vector<TokenId> tokens;
  std::vector<float> logits;    // after the last token; empty: not computed
  int64_t first_generated = 0;  // of tokens: where the answer begins
  // How the answer was chosen: equal keys choose equal answers to equal prompts. 0: nobody knows.
  uint64_t answer_key = 0;
};

// A text that is wanted: `prompt`, then an answer that is chosen as the key says.
struct WantedText {
  std::span<const TokenId> prompt;
  uint64_t answer_key = 0;
};

// How many tokens of the wanted text a state saves computing; 0: none, it is of no use. A recurrent
// state cannot be cut, so a state that knows more than the prompt is only of use when what it knows
// is the answer. What ends at the end of the prompt must have its logits.
int64_t UsefulTokens(std::span<const TokenId> tokens, bool has_logits, int64_t first_generated,
                     uint64_t answer_key, const WantedText& wanted);

struct StateCacheOptions {
  uint64_t ram_bytes = 0;     // 0: none in RAM
  std::string folder;         // "": none in files
  uint64_t folder_bytes = 0;  // of all files
};

// The least recently used go first. What cannot be written or read is not kept: nothing depends on
// it but time. Not thread-safe.
class StateCache {
 public:
  using Id = uint64_t;  // 0: none

  // Finds what was left in the folder; what is damaged there is removed. Throws Error(kIo) when it
  // cannot be used or another process uses it.
  StateCache(const StateCacheOptions& options, const SessionOrigin& origin, int64_t context_tokens);

  bool keeps_any() const { return options_.ram_bytes > 0 || !options_.folder.empty(); }

  // Of the most useful one.
  int64_t MostUseful(const WantedText& wanted) const;
  // Puts the most useful one into `state`, if it is of use for more than `more_than` tokens.
  // Nothing means that there is none; the state may then have been cleared.
  std::optional<KeptText> Restore(const WantedText& wanted, int64_t more_than,
                                  SequenceState& state);

  // `capture` as SequenceState::SaveTo; its text has no logits. 0 when there is no room for it.
  Id Keep(const KeptText& text, const SequenceState& state, const StateCapture* capture = nullptr);
  // Makes room in RAM for so many bytes that the caller has until ReleaseRoom. False when there is
  // less in all.
  bool ReserveRoom(uint64_t bytes);
  void ReleaseRoom() { reserved_bytes_ = 0; }
  void Drop(Id id);

  uint64_t ram_bytes() const;                      // in use
  uint64_t file_bytes() const;                     // of all files
  uint64_t failures() const { return failures_; }  // of reading and writing

 private:
  struct Entry {
    Id id = 0;
    KeptText text;                 // with the logits that are in RAM, beside the state
    bool usable = true;            // false: a file of another model
    std::vector<std::byte> state;  // empty: not in RAM
    std::string path;              // empty: no file
    uint64_t file_bytes = 0;
    bool file_has_logits = false;
    uint64_t last_use = 0;

    bool has_logits() const { return !text.logits.empty() || file_has_logits; }
    // Of a state that has its logits in the file alone, the file is read.
    bool is_best_in_ram() const { return !state.empty() && has_logits() != text.logits.empty(); }
    uint64_t ram_bytes() const { return state.size() + text.logits.size() * sizeof(float); }
  };

  void FindFiles();
  void AddFile(const std::string& path);
  const Entry* MostUsefulEntry(const WantedText& wanted) const;
  void PutIntoRam(Entry& entry, const std::vector<float>& logits, const SequenceState& state,
                  const StateCapture* capture);
  void Write(Entry& entry, const std::vector<float>& logits, const SequenceState& state,
             const StateCapture* capture);
  void FreeRam(uint64_t bytes);
  void ForgetLost();
  void MakeRoomInFolder();
  void RemoveFileOf(Entry& entry);
  static void ForgetFileOf(Entry& entry);
  Entry* Find(Id id);

  const StateCacheOptions options_;
  const SessionOrigin origin_;
  const int64_t context_tokens_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<std::unique_ptr<Entry>> entries_;
  Id last_id_ = 0;
  uint64_t clock_ = 0;
  uint64_t reserved_bytes_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace deltafin
