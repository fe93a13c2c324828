# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Imports libtorch as `gradwire::torch` from its folder of headers and libraries alone. torch's own CMake files are not
# used: those of a CUDA wheel insist on a CUDA toolkit, which a program that only links against the wheel does not need.
#
# Where torch is looked for, first match wins:
#   1. GRADWIRE_TORCH_DIR      the folder that holds include/ and lib/
#   2. CMAKE_PREFIX_PATH       a libtorch distribution, or a torch package folder
#   3. the Python in .venv/, then `python3`: the folder of its `torch` package
function(gradwire_find_torch OUT)
  set(candidates ${GRADWIRE_TORCH_DIR} ${CMAKE_PREFIX_PATH})
  foreach(python "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      list(APPEND candidates "${folder}")
    endif()
  endforeach()
  foreach(folder IN LISTS candidates)
    if(EXISTS "${folder}/include/torch/version.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
      set(${OUT} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "gradwire: no libtorch found. Looked for include/torch/version.h and lib/libtorch_cpu.so in: ${candidates}. "
    "Run `make setup`, name a libtorch with -DCMAKE_PREFIX_PATH=..., or build the torch-free part with -DGRADWIRE_TORCH=OFF.")
endfunction()

gradwire_find_torch(GRADWIRE_TORCH_FOUND)
set(GRADWIRE_TORCH_DIR "${GRADWIRE_TORCH_FOUND}" CACHE PATH "libtorch: the folder that holds include/ and lib/")
file(STRINGS "${GRADWIRE_TORCH_DIR}/include/torch/version.h" version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" GRADWIRE_TORCH_VERSION "${version_lines}")
if(GRADWIRE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "gradwire: libtorch ${GRADWIRE_TORCH_VERSION} in ${GRADWIRE_TORCH_DIR} is too old; 2.11 or newer is needed.")
endif()
message(STATUS "gradwire: libtorch ${GRADWIRE_TORCH_VERSION} in ${GRADWIRE_TORCH_DIR}")

add_library(gradwire_torch INTERFACE IMPORTED GLOBAL)
add_library(gradwire::torch ALIAS gradwire_torch)
# System headers: torch's are not clean under -Wall -Wextra.
target_include_directories(gradwire_torch SYSTEM INTERFACE
  "${GRADWIRE_TORCH_DIR}/include" "${GRADWIRE_TORCH_DIR}/include/torch/csrc/api/include")
target_link_libraries(gradwire_torch INTERFACE
  "${GRADWIRE_TORCH_DIR}/lib/libtorch.so" "${GRADWIRE_TORCH_DIR}/lib/libtorch_cpu.so" "${GRADWIRE_TORCH_DIR}/lib/libc10.so")
# libtorch.so of a CUDA wheel names libraries that live in sibling packages; it finds them itself at run time.
target_link_options(gradwire_torch INTERFACE -Wl,--allow-shlib-undefined "-Wl,-rpath,${GRADWIRE_TORCH_DIR}/lib")

# One precompiled header for every source above the line: torch's headers cost 15-20 s a file otherwise.
function(gradwire_use_torch_pch TARGET)
  if(NOT TARGET gradwire_torch_pch)
    add_library(gradwire_torch_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/torch_pch.cc")
    target_link_libraries(gradwire_torch_pch PUBLIC gradwire::torch Threads::Threads PRIVATE gradwire_flags)
    target_precompile_headers(gradwire_torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM gradwire_torch_pch)
endfunction()
