# Flags that every target shares, and the two functions that the folders use.

find_package(Threads REQUIRED)

# Sources that differ between systems are called NAME_linux.cc and NAME_macos.cc.
if(APPLE)
  set(DELTAFIN_SYSTEM macos)
else()
  set(DELTAFIN_SYSTEM linux)
endif()

add_library(deltafin_flags INTERFACE)
target_include_directories(deltafin_flags INTERFACE ${PROJECT_SOURCE_DIR}/src
                                                    ${PROJECT_SOURCE_DIR}/include)
# -ffp-contract=off: a fused multiply-add happens only where the code says so (docs/numerics.md).
target_compile_options(
  deltafin_flags
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Wold-style-cast
            -Wcast-qual
            -Wconversion
            -Wno-sign-conversion
            -Werror
            -ffp-contract=off
            -fno-math-errno)
if(APPLE)  # libc++ before version 20 has std::jthread, but hides it
  target_compile_definitions(deltafin_flags INTERFACE _LIBCPP_ENABLE_EXPERIMENTAL)
endif()
target_link_libraries(deltafin_flags INTERFACE Threads::Threads)

if(DELTAFIN_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# deltafin_module(NAME SOURCES ... [DEPS ...]): one folder = one static library.
function(deltafin_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC deltafin_flags ${ARG_DEPS})
endfunction()

# deltafin_test(NAME SOURCES ... [DEPS ...] [TIMEOUT s] [LABELS ...]): one GoogleTest program.
# Tests find the repository through DELTAFIN_SOURCE_DIR, and reference data that may not be copied
# into it in the folder "shared" beside the repository (tests/shared_data.h).
function(deltafin_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT DELTAFIN_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE deltafin_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE DELTAFIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  math(EXPR timeout "${ARG_TIMEOUT} * ${DELTAFIN_TIMEOUT_FACTOR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
  if(CMAKE_CROSSCOMPILING)
    # A death test starts its own program again, which the emulator cannot do.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
                                            "GTEST_FILTER=-*DeathTest.*;DELTAFIN_ROUNDS=25")
  endif()
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
endfunction()
