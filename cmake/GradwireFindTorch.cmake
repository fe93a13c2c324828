# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Imports libtorch as `gradwire::torch` from its folder of headers and libraries alone. torch's own CMake files are not
# used: those of a CUDA wheel insist on a CUDA toolkit, which a program that only links against the wheel does not need
# (docs/decisions/0001). Shared by gradwire's own build and by the installed package.

# gradwire_find_torch(OUT [HINTS folder...] [PYTHONS interpreter...])
#   The folder of a libtorch, which has include/torch/headeronly/version.h and lib/libtorch_cpu.so. Where GRADWIRE_TORCH_DIR names a
#   folder, that one and no other; then the one that find_package(Torch) has found (TORCH_INSTALL_PREFIX), so that a program gets no
#   second libtorch. Otherwise the first out of: each entry of CMAKE_PREFIX_PATH, HINTS, the folder of the `torch`
#   package of each interpreter. "OUT-NOTFOUND" when there is none; OUT_PROBLEM says then where this function looked and what for.
function(gradwire_find_torch OUT)
  cmake_parse_arguments(F "" "" "HINTS;PYTHONS" ${ARGN})
  set(wanted "include/torch/headeronly/version.h and lib/libtorch_cpu.so")
  if(GRADWIRE_TORCH_DIR)
    if(EXISTS "${GRADWIRE_TORCH_DIR}/include/torch/headeronly/version.h" AND EXISTS "${GRADWIRE_TORCH_DIR}/lib/libtorch_cpu.so")
      set(${OUT} "${GRADWIRE_TORCH_DIR}" PARENT_SCOPE)
    else()
      set(${OUT} "${OUT}-NOTFOUND" PARENT_SCOPE)
      set(${OUT}_PROBLEM "no libtorch in GRADWIRE_TORCH_DIR, which is ${GRADWIRE_TORCH_DIR}: there are no ${wanted}" PARENT_SCOPE)
    endif()
    return()
  endif()
  if(Torch_FOUND AND TORCH_INSTALL_PREFIX)
    if(EXISTS "${TORCH_INSTALL_PREFIX}/include/torch/headeronly/version.h" AND EXISTS "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so")
      set(${OUT} "${TORCH_INSTALL_PREFIX}" PARENT_SCOPE)
    else()
      set(${OUT} "${OUT}-NOTFOUND" PARENT_SCOPE)
      set(${OUT}_PROBLEM "no libtorch that gradwire knows where find_package(Torch) found it, in ${TORCH_INSTALL_PREFIX}: there are no ${wanted}" PARENT_SCOPE)
    endif()
    return()
  endif()
  set(prefixes ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND prefixes ${from_environment})
  endif()
  set(looked)
  foreach(folder IN LISTS prefixes F_HINTS)
    list(APPEND looked "${folder}")
    if(EXISTS "${folder}/include/torch/headeronly/version.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
      set(${OUT} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  foreach(python IN LISTS F_PYTHONS)
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    list(APPEND looked "the torch package of ${python}")
    if(NOT failed AND EXISTS "${folder}/include/torch/headeronly/version.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
      set(${OUT} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${OUT} "${OUT}-NOTFOUND" PARENT_SCOPE)
  list(JOIN looked ", " looked)
  set(${OUT}_PROBLEM "no libtorch found; looked for ${wanted} in: ${looked}" PARENT_SCOPE)
endfunction()

# gradwire_torch_version(OUT folder): "2.13.0" for a folder that gradwire_find_torch found.
function(gradwire_torch_version OUT FOLDER)
  file(STRINGS "${FOLDER}/include/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
  set(${OUT} "${version}" PARENT_SCOPE)
endfunction()

# gradwire_import_torch(folder): the target gradwire::torch.
function(gradwire_import_torch FOLDER)
  if(TARGET gradwire::torch)
    return()
  endif()
  add_library(gradwire::torch INTERFACE IMPORTED GLOBAL)
  # System headers: torch's are not clean under -Wall -Wextra.
  target_include_directories(gradwire::torch SYSTEM INTERFACE
    "${FOLDER}/include" "${FOLDER}/include/torch/csrc/api/include")
  # libstdc++ before torch, so that the loader finds its functions first: libtorch.so of the wheel of 2.11 exports a copy of
  # std::filesystem, whose remove_all() ends the process.
  target_link_libraries(gradwire::torch INTERFACE
    stdc++ "${FOLDER}/lib/libtorch.so" "${FOLDER}/lib/libtorch_cpu.so" "${FOLDER}/lib/libc10.so")
  # libtorch.so of a CUDA wheel needs libraries that lie in sibling packages; the loader finds them by libtorch's own run
  # path, the linker does not look for them. It is also what brings in the CUDA half, so it stays although no symbol is its own.
  target_link_options(gradwire::torch INTERFACE -Wl,--allow-shlib-undefined -Wl,--no-as-needed)
endfunction()
