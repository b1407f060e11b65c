// How far the prompt is, for people who wait.
#pragma once

#include <chrono>

#include "deltafin/session.h"

namespace deltafin {

// On a terminal one line of stderr that changes in place and goes when the prompt is read;
// elsewhere nothing for ten seconds and then a line a minute.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const PrefillProgress& progress);
  // Nothing is shown afterwards until Show is called again.
  void Finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  bool visible_ = false;
  Clock::time_point next_;
};

}  // namespace deltafin
