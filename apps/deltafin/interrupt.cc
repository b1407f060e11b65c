#include "interrupt.h"

#include <csignal>

namespace deltafin {
namespace {

volatile std::sig_atomic_t g_signal = 0;

extern "C" void OnSignal(int signal) {
  // The second may be another one than the first.
  if (g_signal != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // comes when this has returned
    return;
  }
  g_signal = signal;
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // The terminal has gone; under nohup that means nothing.
  struct sigaction before {};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
}

int InterruptSignal() noexcept { return g_signal; }

}  // namespace deltafin
