// What a standard stream leads to.
#pragma once

namespace deltafin {

// A terminal that understands escape sequences: one with a name in TERM other than dumb.
bool IsTerminal(int stream);

// Bold, dimmed and so on may be used on such a terminal: NO_COLOR is not set.
bool WantsStyles();

}  // namespace deltafin
