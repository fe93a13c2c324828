# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# The Python that the package is built for: the one whose torch this build uses, so `gradwire::torch` must be a torch package
# (a plain libtorch has no Python half). Sets GRADWIRE_PYTHON_EXECUTABLE, _INCLUDE, _SUFFIX and _VERSION ("3.11"); GRADWIRE_PYTHON_FOUND says
# whether there is one, GRADWIRE_PYTHON_MISSING why not.
set(GRADWIRE_PYTHON_FOUND OFF)
set(GRADWIRE_PYTHON_MISSING "${GRADWIRE_TORCH_DIR} is a libtorch without its Python half")
if(EXISTS "${GRADWIRE_TORCH_DIR}/lib/libtorch_python.so")
  set(GRADWIRE_PYTHON_MISSING "no interpreter has its torch package at ${GRADWIRE_TORCH_DIR}")
  # Python_EXECUTABLE is what scikit-build-core names.
  foreach(python IN ITEMS "${Python_EXECUTABLE}" "${GRADWIRE_TORCH_DIR}/../../../../bin/python" "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    if(NOT python)
      continue()
    endif()
    execute_process(
      COMMAND "${python}" -c "
import importlib.util as u, os, sysconfig
print(os.path.realpath(u.find_spec('torch').submodule_search_locations[0]))
print(sysconfig.get_path('include'))
print(sysconfig.get_config_var('EXT_SUFFIX'))
print(sysconfig.get_python_version())"
      OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    file(REAL_PATH "${GRADWIRE_TORCH_DIR}" wanted)
    string(REPLACE "\n" ";" answer "${answer}")
    list(LENGTH answer lines)
    if(failed OR NOT lines EQUAL 4)
      continue()
    endif()
    list(GET answer 0 found_torch)
    list(GET answer 1 GRADWIRE_PYTHON_INCLUDE)
    list(GET answer 2 GRADWIRE_PYTHON_SUFFIX)
    list(GET answer 3 GRADWIRE_PYTHON_VERSION)
    if(NOT found_torch STREQUAL wanted)
      continue()
    endif()
    if(NOT EXISTS "${GRADWIRE_PYTHON_INCLUDE}/Python.h")
      set(GRADWIRE_PYTHON_MISSING "${python} has no headers in ${GRADWIRE_PYTHON_INCLUDE} (Debian: python3-dev)")
      continue()
    endif()
    set(GRADWIRE_PYTHON_EXECUTABLE "${python}")
    set(GRADWIRE_PYTHON_FOUND ON)
    break()
  endforeach()
endif()
