# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Highway of third_party/: its few functions for choosing a target and for memory, compiled here.
if(NOT TARGET hwy::hwy)
  file(GLOB hwy_sources "${GRADWIRE_THIRD_PARTY}/highway/hwy/*.cc")
  add_library(gradwire_bundled_hwy STATIC EXCLUDE_FROM_ALL ${hwy_sources})
  target_include_directories(gradwire_bundled_hwy SYSTEM PUBLIC "${GRADWIRE_THIRD_PARTY}/highway")
  target_compile_definitions(gradwire_bundled_hwy PUBLIC HWY_STATIC_DEFINE)
  add_library(hwy::hwy ALIAS gradwire_bundled_hwy)
endif()
