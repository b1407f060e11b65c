#include <iostream>

#include "deltafin/error.h"
#include "line_source.h"

namespace deltafin {
namespace {

class PipeLines final : public LineSource {
 public:
  std::optional<std::string> Next() override {
    std::string message;
    std::string line;
    bool any = false;
    while (std::getline(std::cin, line)) {
      any = true;
      if (line.ends_with('\r')) line.pop_back();  // lines of a file from Windows
      const bool goes_on = line.ends_with('\\');
      if (goes_on) line.back() = '\n';
      message += line;
      if (!goes_on) return message;
    }
    if (std::cin.bad()) throw Error(ErrorCode::kIo, "standard input: reading failed");
    if (!any) return std::nullopt;
    return message;
  }
};

}  // namespace

std::unique_ptr<LineSource> LineSource::FromPipe() { return std::make_unique<PipeLines>(); }

}  // namespace deltafin
