// Compiled with the flags of this instruction set: see CMakeLists.txt and kernels.h.
#include "device/cpu/lanes_neon.h"
#include "device/cpu/table_impl.h"

namespace deltafin {

constinit const KernelTable kNeonKernels = MakeKernelTable<NeonLanes>();

}  // namespace deltafin
