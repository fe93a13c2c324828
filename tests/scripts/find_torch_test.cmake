# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# cmake -P: which libtorch cmake/GradwireFindTorch.cmake takes out of several.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/GradwireFindTorch.cmake")
unset(ENV{CMAKE_PREFIX_PATH})

set(scratch "${CMAKE_CURRENT_BINARY_DIR}/find_torch_test")
file(REMOVE_RECURSE "${scratch}")
foreach(name named prefix stored found)
  file(WRITE "${scratch}/${name}/include/torch/headeronly/version.h" "")
  file(WRITE "${scratch}/${name}/lib/libtorch_cpu.so" "")
endforeach()
file(MAKE_DIRECTORY "${scratch}/empty")

function(expect WHAT FOUND WANTED)
  if(NOT FOUND STREQUAL WANTED)
    message(SEND_ERROR "${WHAT}: found '${FOUND}', not '${WANTED}'")
  endif()
endfunction()

gradwire_find_torch(found HINTS "${scratch}/stored")
expect("nothing named" "${found}" "${scratch}/stored")

set(CMAKE_PREFIX_PATH "${scratch}/empty" "${scratch}/prefix")
gradwire_find_torch(found HINTS "${scratch}/stored")
expect("a prefix that holds one" "${found}" "${scratch}/prefix")

# As TorchConfig.cmake leaves it.
set(Torch_FOUND TRUE)
set(TORCH_INSTALL_PREFIX "${scratch}/found")
gradwire_find_torch(found HINTS "${scratch}/stored")
expect("the one of find_package(Torch)" "${found}" "${scratch}/found")
set(TORCH_INSTALL_PREFIX "${scratch}/empty")
gradwire_find_torch(found HINTS "${scratch}/stored")
expect("no second one beside a libtorch that does not fit" "${found}" "found-NOTFOUND")
if(NOT found_PROBLEM MATCHES "find_package\\(Torch\\) found it, in ${scratch}/empty")
  message(SEND_ERROR "the problem is told so: '${found_PROBLEM}'")
endif()
set(TORCH_INSTALL_PREFIX "${scratch}/found")

set(GRADWIRE_TORCH_DIR "${scratch}/named")
gradwire_find_torch(found HINTS "${scratch}/stored")
expect("a folder that was named" "${found}" "${scratch}/named")

# The user's mistake is told, not mended with another libtorch.
foreach(wrong empty missing)
  set(GRADWIRE_TORCH_DIR "${scratch}/${wrong}")
  gradwire_find_torch(found HINTS "${scratch}/stored")
  expect("a folder without libtorch that was named" "${found}" "found-NOTFOUND")
  if(NOT found_PROBLEM MATCHES "no libtorch in GRADWIRE_TORCH_DIR, which is ${scratch}/${wrong}:")
    message(SEND_ERROR "the problem is told so: '${found_PROBLEM}'")
  endif()
endforeach()

unset(Torch_FOUND)
unset(GRADWIRE_TORCH_DIR)
set(CMAKE_PREFIX_PATH "${scratch}/empty")
gradwire_find_torch(found)
expect("none anywhere" "${found}" "found-NOTFOUND")
if(NOT found_PROBLEM MATCHES "${scratch}/empty")
  message(SEND_ERROR "the problem is told so: '${found_PROBLEM}'")
endif()
file(REMOVE_RECURSE "${scratch}")
