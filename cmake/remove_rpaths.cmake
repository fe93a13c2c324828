# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Run by CPack on the files of the packages.
file(GLOB_RECURSE files "${CPACK_TEMPORARY_DIRECTORY}/*/usr/lib/libgradwire*.so.*" "${CPACK_TEMPORARY_DIRECTORY}/*/usr/bin/gradwire-*")
foreach(file IN LISTS files)
  if(NOT IS_SYMLINK "${file}")
    file(RPATH_REMOVE FILE "${file}")
  endif()
endforeach()
