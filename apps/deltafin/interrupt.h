// Ctrl-C: the first asks to stop, the second kills.
#pragma once

namespace deltafin {

// From now on SIGINT, SIGTERM and SIGHUP (unless it is ignored) set the flag below once; the next
// one has its default effect.
void CatchInterrupts();
// The signal that came, 0 when none did.
int InterruptSignal() noexcept;
inline bool IsInterrupted() noexcept { return InterruptSignal() != 0; }

}  // namespace deltafin
