#include "terminal.h"

#include <unistd.h>

#include <string>

#include "environment.h"

namespace deltafin {

bool IsTerminal(int stream) {
  const std::string name = Environment("TERM");
  return isatty(stream) != 0 && !name.empty() && name != "dumb";
}

bool WantsStyles() { return Environment("NO_COLOR").empty(); }

}  // namespace deltafin
