# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# The libraries below torch: Highway, OpenSSL's libcrypto, and spdlog with fmt (gradwire_spdlog).
#
# GRADWIRE_BUNDLED_DEPENDENCIES puts them into gradwire's libraries, for packages that run where they are not installed (the wheel):
# spdlog and fmt as headers, libcrypto and Highway as archives where there are archives. Their names stay local to the
# library, so another copy in the same process is never called by mistake.
#
# third_party/ is there in the bundle that `make bundle` makes: then all of them but OpenSSL come from it, as headers and, for Highway,
# as sources (cmake/bundled/). OpenSSL is for secrets alone, and a bundle is built without where it is not installed.
set(GRADWIRE_THIRD_PARTY "${PROJECT_SOURCE_DIR}/third_party")
set(gradwire_is_bundle OFF)
if(EXISTS "${GRADWIRE_THIRD_PARTY}/include")
  set(gradwire_is_bundle ON)
  foreach(package IN ITEMS hwy spdlog CLI11 nlohmann_json GTest)
    set(${package}_DIR "${CMAKE_CURRENT_LIST_DIR}/bundled")
  endforeach()
  include_directories(SYSTEM "${GRADWIRE_THIRD_PARTY}/include" "${GRADWIRE_THIRD_PARTY}/highway")
  message(STATUS "gradwire: Highway, spdlog, fmt, asio, CLI11, nlohmann json and GoogleTest of third_party/")
endif()
option(GRADWIRE_OPENSSL "Secrets of jobs, by OpenSSL; a build without refuses a secret" ON)
option(GRADWIRE_BUNDLED_DEPENDENCIES "Link spdlog, fmt and, where their archives are installed, OpenSSL and Highway into gradwire's libraries" ${gradwire_is_bundle})

find_package(Threads REQUIRED)
find_package(hwy REQUIRED)
find_package(spdlog REQUIRED)
if(GRADWIRE_OPENSSL AND gradwire_is_bundle)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT OPENSSL_FOUND)
    message(STATUS "gradwire: no secrets, for there is no OpenSSL; everything else stays")
    set(GRADWIRE_OPENSSL OFF)
  endif()
endif()
if(GRADWIRE_OPENSSL AND GRADWIRE_BUNDLED_DEPENDENCIES AND NOT gradwire_is_bundle)
  set(OPENSSL_USE_STATIC_LIBS ON)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT OPENSSL_FOUND)
    message(STATUS "gradwire: there is no archive of libcrypto, so the shared library is linked")
    set(OPENSSL_USE_STATIC_LIBS OFF)
    unset(OPENSSL_CRYPTO_LIBRARY CACHE)
  endif()
endif()
if(GRADWIRE_OPENSSL)
  find_package(OpenSSL REQUIRED COMPONENTS Crypto)
endif()

add_library(gradwire_spdlog INTERFACE)
if(GRADWIRE_BUNDLED_DEPENDENCIES)
  foreach(library IN ITEMS spdlog::spdlog fmt::fmt)
    get_target_property(folders ${library} INTERFACE_INCLUDE_DIRECTORIES)
    target_include_directories(gradwire_spdlog SYSTEM INTERFACE ${folders})
  endforeach()
  target_compile_definitions(gradwire_spdlog INTERFACE SPDLOG_FMT_EXTERNAL SPDLOG_HEADER_ONLY FMT_HEADER_ONLY)
  set(gradwire_hide_bundled "${CMAKE_CURRENT_LIST_DIR}/hide_bundled.map")
else()
  target_link_libraries(gradwire_spdlog INTERFACE spdlog::spdlog)
endif()

# The library whose archive CMake would link as `hwy::hwy`.
set(GRADWIRE_HIGHWAY hwy::hwy)
if(GRADWIRE_BUNDLED_DEPENDENCIES AND NOT gradwire_is_bundle)
  find_library(GRADWIRE_HIGHWAY_ARCHIVE libhwy.a)
  mark_as_advanced(GRADWIRE_HIGHWAY_ARCHIVE)
  if(GRADWIRE_HIGHWAY_ARCHIVE)
    set(GRADWIRE_HIGHWAY "${GRADWIRE_HIGHWAY_ARCHIVE}")
  endif()
endif()

# Called for the shared libraries that hold the rooms.
function(gradwire_hide_bundled_names TARGET)
  if(GRADWIRE_BUNDLED_DEPENDENCIES)
    target_link_options(${TARGET} PRIVATE "LINKER:--exclude-libs,ALL" "LINKER:--version-script=${gradwire_hide_bundled}")
    set_property(TARGET ${TARGET} APPEND PROPERTY LINK_DEPENDS "${gradwire_hide_bundled}")
  endif()
endfunction()
