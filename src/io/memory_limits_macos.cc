#include <mach/mach.h>
#include <sys/sysctl.h>

#include "io/memory_limits.h"

namespace deltafin {
namespace {

uint64_t PhysicalBytes() {
  uint64_t bytes = 0;
  size_t size = sizeof(bytes);
  return ::sysctlbyname("hw.memsize", &bytes, &size, nullptr, 0) == 0 ? bytes : 0;
}

// Free, or holding what can be read from files again, or what its owner gave up.
uint64_t AvailableBytes() {
  vm_statistics64_data_t pages = {};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = ::mach_host_self();
  const kern_return_t result =
      ::host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count);
  ::mach_port_deallocate(::mach_task_self(), host);
  if (result != KERN_SUCCESS) return 0;
  // Pages that were read ahead count as free and as a file's.
  const uint64_t available = uint64_t{pages.free_count} - pages.speculative_count +
                             pages.external_page_count + pages.purgeable_count;
  return available * ::vm_kernel_page_size;
}

}  // namespace

// There are no control groups, and the resource limits bind no memory that is mapped.
MemoryLimits ReadMemoryLimits(const std::string&) {
  MemoryLimits limits;
  limits.physical_bytes = PhysicalBytes();
  limits.available_bytes = AvailableBytes();
  limits.limit_bytes = limits.physical_bytes;
  limits.limited_by = "physical memory";
  return limits;
}

ProcessMemory ReadProcessMemory(const std::string&) {
  mach_task_basic_info_data_t info = {};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  if (::task_info(::mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info),
                  &count) != KERN_SUCCESS) {
    return {};
  }
  return {info.resident_size, info.resident_size_max, info.virtual_size};
}

}  // namespace deltafin
