// For systems without liburing.
#include "deltafin/error.h"
#include "io/read_schedule.h"

namespace deltafin {

std::unique_ptr<ReadQueue> MakeUringReadQueue(const ReadQueueOptions&) {
  throw Error(ErrorCode::kUnsupported,
              "io_uring: this program was built without liburing; read with threads");
}

}  // namespace deltafin
