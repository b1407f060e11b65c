// Ctrl-C while an answer is made: it stops the answer, not the program.
#pragma once

#include <csignal>

namespace deltafin {

// Counts SIGINT from its construction to its destruction; one at a time. The third has the effect
// that it had before, which ends a program that hangs.
class AnswerInterrupt {
 public:
  AnswerInterrupt();
  ~AnswerInterrupt();
  AnswerInterrupt(const AnswerInterrupt&) = delete;
  AnswerInterrupt& operator=(const AnswerInterrupt&) = delete;

  // Once: stop where it costs nothing, after the token that is being computed.
  static bool wants_stop() noexcept;
  // Twice: stop in the middle of a token.
  static bool wants_stop_now() noexcept;

 private:
  struct sigaction before_ {};
};

}  // namespace deltafin
