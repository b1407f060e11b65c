#include "setup_display.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "deltafin/json.h"
#include "interrupt.h"
#include "overwritten_line.h"
#include "terminal.h"

namespace deltafin {
namespace {

constexpr int kSetupBarWidth = 24;
constexpr std::chrono::seconds kLineEvery{60};
constexpr std::chrono::seconds kJsonEvery{1};

// Text of `progress` after the bar.
std::string Line(const SetupProgress& p) {
  char text[160];
  const double percent = p.total_bytes > 0 ? 100 * static_cast<double>(p.done_bytes) /
                                                 static_cast<double>(p.total_bytes)
                                           : 0;
  std::snprintf(text, sizeof(text), "%s: %5.1f %%, %s of %s, %s/s", p.phase.c_str(), percent,
                DiskBytes(p.done_bytes).c_str(), DiskBytes(p.total_bytes).c_str(),
                DiskBytes(static_cast<uint64_t>(p.bytes_per_second)).c_str());
  std::string line = text;
  if (p.seconds_left > 0) line += ", " + Duration(p.seconds_left) + " left";
  if (!p.shard.empty()) line += ", " + p.shard;
  if (p.layer >= 0) line += ", layer " + std::to_string(p.layer);
  return line;
}

}  // namespace

std::string DiskBytes(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  char text[32];
  if (bytes >= 1'000'000'000'000) {
    std::snprintf(text, sizeof(text), "%.3f TB", b / 1e12);
  } else if (bytes >= 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.2f GB", b / 1e9);
  } else if (bytes >= 1'000'000) {
    std::snprintf(text, sizeof(text), "%.1f MB", b / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%.1f kB", b / 1e3);
  }
  return text;
}

std::string Duration(double seconds) {
  const auto s = std::llround(seconds);
  if (s < 60) return std::to_string(s) + " s";
  if (s < 3600) return std::to_string(s / 60) + " min " + std::to_string(s % 60) + " s";
  return std::to_string(s / 3600) + " h " + std::to_string(s % 3600 / 60) + " min";
}

SetupDisplay::SetupDisplay(DisplayStyle style)
    : style_(style), is_terminal_(IsTerminal(STDERR_FILENO)), shown_(Clock::now() - kLineEvery) {}

SetupDisplay::~SetupDisplay() { EndLine(); }

void SetupDisplay::EndLine() {
  if (bar_is_open_) std::fputc('\n', stderr);
  bar_is_open_ = false;
}

bool SetupDisplay::Show(const SetupProgress& progress) {
  if (style_ == DisplayStyle::kJson) {
    ShowJson(progress);
  } else {
    if (!progress.notice.empty()) {
      EndLine();
      std::fprintf(stderr, "%s\n", progress.notice.c_str());
    }
    ShowBar(progress);
  }
  return InterruptSignal() == 0;
}

void SetupDisplay::ShowJson(const SetupProgress& p) {
  if (!p.notice.empty()) {
    std::cout << DumpJson({{"event", "notice"}, {"text", p.notice}}) << std::endl;
  }
  const auto now = Clock::now();
  if (now - shown_ < kJsonEvery && p.phase == phase_) return;
  shown_ = now;
  phase_ = p.phase;
  std::cout << DumpJson({{"event", "progress"},
                         {"phase", p.phase},
                         {"done_bytes", p.done_bytes},
                         {"total_bytes", p.total_bytes},
                         {"local_bytes", p.local_bytes},
                         {"shard_bytes", p.shard_bytes},
                         {"bytes_per_second", p.bytes_per_second},
                         {"seconds_left", p.seconds_left},
                         {"shard", p.shard},
                         {"layer", p.layer}})
            << std::endl;
}

void SetupDisplay::ShowBar(const SetupProgress& p) {
  const auto now = Clock::now();
  if (!is_terminal_) {
    if (now - shown_ < kLineEvery && p.phase == phase_) return;
    shown_ = now;
    phase_ = p.phase;
    std::fprintf(stderr, "%s\n", Line(p).c_str());
    return;
  }
  const double part = p.total_bytes > 0
                          ? static_cast<double>(p.done_bytes) / static_cast<double>(p.total_bytes)
                          : 0;
  std::string bar(static_cast<size_t>(std::clamp(part, 0.0, 1.0) * kSetupBarWidth), '#');
  bar.resize(kSetupBarWidth, '.');
  std::fprintf(stderr, "%s[%s] %s%s", kBeginOverwrite, bar.c_str(), Line(p).c_str(), kEndOverwrite);
  std::fflush(stderr);
  bar_is_open_ = true;
}

}  // namespace deltafin
