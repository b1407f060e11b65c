# Cross toolchain for 64-bit Arm: Debian's g++-aarch64-linux-gnu (which brings libc and libstdc++),
# the other libraries from the sysroot that scripts/aarch64-sysroot makes, programs under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(sysroot ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-sysroot)
cmake_path(NORMAL_PATH sysroot)
set(libraries ${sysroot}/usr/lib/aarch64-linux-gnu)
if(NOT EXISTS ${sysroot}/complete)
  message(FATAL_ERROR "There is no ${sysroot}: run scripts/aarch64-sysroot first")
endif()

set(CMAKE_FIND_ROOT_PATH ${sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${sysroot}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${sysroot})

# For headers and libraries that are on the default path in a native build.
set(CMAKE_CXX_FLAGS_INIT
    "-idirafter ${sysroot}/usr/include -idirafter ${sysroot}/usr/include/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath-link,${libraries}")
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries})
