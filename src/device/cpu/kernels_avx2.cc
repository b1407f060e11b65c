// Compiled with the flags of this instruction set: see CMakeLists.txt and kernels.h.
#include "device/cpu/lanes_avx2.h"
#include "device/cpu/table_impl.h"

namespace deltafin {

constinit const KernelTable kAvx2Kernels = MakeKernelTable<Avx2Lanes>();

}  // namespace deltafin
