// Compiled with the flags of this instruction set: see CMakeLists.txt and kernels.h.
#include "device/cpu/lanes_avx512.h"
#include "device/cpu/table_impl.h"

namespace deltafin {

constinit const KernelTable kAvx512Kernels = MakeKernelTable<Avx512Lanes>();

}  // namespace deltafin
