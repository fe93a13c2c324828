# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Everything that holds for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
include(GNUInstallDirs)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
# Installed libraries and programs find each other wherever the prefix is moved to.
file(RELATIVE_PATH gradwire_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/${gradwire_bin_to_lib}")

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers carry time stamps and macros that ccache refuses unless told that they are harmless.
  # Paths below the source folder are made relative, so that two clones share what one of them has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CCACHE}")
endif()

add_library(gradwire_flags INTERFACE)
# Only where the warnings are known: what a newer compiler thinks of must not stop whoever builds with it.
set(gradwire_is_checked OFF)
if(NOT SKBUILD AND ((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
    OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^14\\.")))
  set(gradwire_is_checked ON)
endif()
option(GRADWIRE_WERROR "A warning is an error; by default with the compilers that the project is checked with" ${gradwire_is_checked})
# No contraction: a fused multiply-add rounds once where the reference rounds twice, and bits would depend on the compiler.
# No interposition, and no jumps by way of a table: they were a fifth of a small call.
target_compile_options(gradwire_flags INTERFACE
  -Wall -Wextra $<$<BOOL:${GRADWIRE_WERROR}>:-Werror> -ffp-contract=off -fno-math-errno -fno-semantic-interposition -fno-plt)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(gradwire_flags INTERFACE -Wthread-safety)
endif()

set(GRADWIRE_SANITIZE "" CACHE STRING "Sanitizers of every target, separated by commas: address,undefined or thread")
if(GRADWIRE_SANITIZE)
  add_compile_options(-fsanitize=${GRADWIRE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GRADWIRE_SANITIZE})
  if(GRADWIRE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's TSan does not model std::atomic_thread_fence and says so wherever one stands.
    add_compile_options(-Wno-tsan)
  endif()
endif()
