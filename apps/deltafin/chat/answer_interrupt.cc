#include "answer_interrupt.h"

namespace deltafin {
namespace {

volatile std::sig_atomic_t g_count = 0;

extern "C" void CountInterrupt(int signal) {
  g_count = g_count + 1;
  if (g_count == 2) std::signal(signal, SIG_DFL);
}

}  // namespace

AnswerInterrupt::AnswerInterrupt() {
  g_count = 0;
  struct sigaction action {};
  action.sa_handler = CountInterrupt;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_);
}

AnswerInterrupt::~AnswerInterrupt() {
  sigaction(SIGINT, &before_, nullptr);
  g_count = 0;
}

bool AnswerInterrupt::wants_stop() noexcept { return g_count >= 1; }

bool AnswerInterrupt::wants_stop_now() noexcept { return g_count >= 2; }

}  // namespace deltafin
