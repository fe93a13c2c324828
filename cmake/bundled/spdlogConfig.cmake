# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# spdlog and fmt of third_party/, as headers.
foreach(library IN ITEMS spdlog::spdlog fmt::fmt)
  if(NOT TARGET ${library})
    add_library(${library} INTERFACE IMPORTED)
    set_target_properties(${library} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${GRADWIRE_THIRD_PARTY}/include")
  endif()
endforeach()
