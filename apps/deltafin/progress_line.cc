#include "progress_line.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "overwritten_line.h"
#include "terminal.h"

namespace deltafin {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kFirstLine{10};
constexpr std::chrono::seconds kNextLine{60};

std::string Duration(double seconds) {
  const long long whole = std::llround(seconds);
  char text[64];
  if (whole < 60) {
    std::snprintf(text, sizeof(text), "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof(text), "%lld min %lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof(text), "%lld h %lld min", whole / 3600, whole / 60 % 60);
  }
  return text;
}

}  // namespace

ProgressLine::ProgressLine() : terminal_(IsTerminal(STDERR_FILENO)) {
  next_ = Clock::now() + (terminal_ ? Clock::duration(0) : kFirstLine);
}

void ProgressLine::Show(const PrefillProgress& progress) {
  if (Clock::now() < next_) return;
  next_ = Clock::now() + (terminal_ ? Clock::duration(kRedraw) : kNextLine);
  const std::string left =
      progress.seconds_left > 0 ? ", about " + Duration(progress.seconds_left) + " left" : "";
  std::fprintf(stderr, "%sprompt: %.0f %% of %lld tokens, layer %lld of %lld%s%s",
               terminal_ ? kBeginOverwrite : "", 100 * progress.done(),
               static_cast<long long>(progress.tokens), static_cast<long long>(progress.layer + 1),
               static_cast<long long>(progress.num_layers), left.c_str(),
               terminal_ ? kEndOverwrite : "\n");
  std::fflush(stderr);
  visible_ = terminal_;
}

void ProgressLine::Finish() {
  if (visible_) std::fputs("\r\033[K", stderr);
  visible_ = false;
}

}  // namespace deltafin
