// How the time is divided between answers that grow and prompts that are being read.
#pragma once

#include <cstdint>

namespace deltafin {

// Prompts get half of the time while answers wait, and all of it otherwise. Where every weight is
// in RAM a pass costs by the position, so prompts go in small pieces and answers hardly pause.
// Where experts come from the disk a pass costs by the experts that it touches, few positions touch
// nearly as many as hundreds do, and small pieces would read everything again and again: prompts
// then go in pieces as large as there is room for, with passes for the answers alone in between.
//
// Pure arithmetic on what it is told; the clock is the caller's. Decides when something is
// computed, never what. Not thread-safe.
class PassPolicy {
 public:
  // `most_positions` of a pass that is for prompts alone.
  PassPolicy(int64_t most_positions, bool weights_in_ram);

  // Positions for prompts in the next pass, in which `answers` get a token each; 0: none now.
  int64_t PromptPositions(int64_t answers) const;

  // A pass took `seconds`.
  void Record(int64_t answers, int64_t prompt_positions, double seconds);

 private:
  // Beside answers, in RAM: a pass of so many positions takes some passes' worth of time.
  static constexpr int64_t kSmallPiece = 64;

  int64_t most_positions_;
  int64_t beside_answers_;
  double answer_seconds_ = 0;  // of a pass for answers alone, as measured lately
  double owed_seconds_ = 0;    // that prompts have had more than answers
};

}  // namespace deltafin
