# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# libtorch for this build: `gradwire::torch` and the precompiled header. Where torch is looked for, first match wins:
#   1. GRADWIRE_TORCH_DIR      the folder that holds include/ and lib/; where one is named, no other place is looked at
#   2. CMAKE_PREFIX_PATH       a libtorch distribution, or a torch package folder
#   3. the Python that scikit-build-core builds a wheel for, the one in .venv/, then `python3`: the folder of its `torch` package
include(GradwireFindTorch)
gradwire_find_torch(GRADWIRE_TORCH_FOUND PYTHONS ${Python_EXECUTABLE} "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
if(NOT GRADWIRE_TORCH_FOUND)
  message(FATAL_ERROR "gradwire: ${GRADWIRE_TORCH_FOUND_PROBLEM}. Run `make setup`, name a libtorch with -DCMAKE_PREFIX_PATH=..., "
    "or build the torch-free part with -DGRADWIRE_TORCH=OFF.")
endif()
# Not into the cache: there it would outlive the folder, and win over a CMAKE_PREFIX_PATH named later.
set(GRADWIRE_TORCH_DIR "${GRADWIRE_TORCH_FOUND}")
gradwire_torch_version(GRADWIRE_TORCH_VERSION "${GRADWIRE_TORCH_DIR}")
if(GRADWIRE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "gradwire: libtorch ${GRADWIRE_TORCH_VERSION} in ${GRADWIRE_TORCH_DIR} is too old; 2.11 or newer is needed.")
endif()
message(STATUS "gradwire: libtorch ${GRADWIRE_TORCH_VERSION} in ${GRADWIRE_TORCH_DIR}")
gradwire_import_torch("${GRADWIRE_TORCH_DIR}")

# A precompiled header for every source above the line: torch's headers cost about 10 s a file otherwise. With WHOLE it holds all of torch,
# for a source that includes torch/torch.h; any other source would pay twice as much for that one.
function(gradwire_use_torch_pch TARGET)
  cmake_parse_arguments(U "WHOLE" "" "" ${ARGN})
  set(pch gradwire_torch_pch)
  set(header torch_pch.h)
  if(U_WHOLE)
    set(pch gradwire_whole_torch_pch)
    set(header whole_torch_pch.h)
  endif()
  if(NOT TARGET ${pch})
    add_library(${pch} OBJECT "${PROJECT_SOURCE_DIR}/cmake/torch_pch.cc")
    target_link_libraries(${pch} PUBLIC gradwire::torch Threads::Threads PRIVATE gradwire_flags)
    target_precompile_headers(${pch} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/${header}")
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${pch})
endfunction()
