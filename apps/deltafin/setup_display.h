// What setup and its relatives show while they work.
#pragma once

#include <chrono>
#include <string>

#include "deltafin/hub.h"

namespace deltafin {

enum class DisplayStyle : uint8_t {
  kPeople,  // a bar on a terminal, else a line a minute; on stderr
  kJson,    // an object for each event, on stdout
};

// "12.3 GB"
std::string DiskBytes(uint64_t bytes);
// "2 h 10 min", "35 s"
std::string Duration(double seconds);

class SetupDisplay {
 public:
  explicit SetupDisplay(DisplayStyle style);
  ~SetupDisplay();
  SetupDisplay(const SetupDisplay&) = delete;
  SetupDisplay& operator=(const SetupDisplay&) = delete;

  // False when the user wants to stop (Ctrl-C).
  bool Show(const SetupProgress& progress);
  // Ends a bar, so that something else can be printed.
  void EndLine();

 private:
  void ShowJson(const SetupProgress& progress);
  void ShowBar(const SetupProgress& progress);

  using Clock = std::chrono::steady_clock;
  const DisplayStyle style_;
  const bool is_terminal_;
  Clock::time_point shown_;
  std::string phase_;
  bool bar_is_open_ = false;
};

}  // namespace deltafin
