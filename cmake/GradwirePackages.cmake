# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Debian packages of the installed components (scripts/deb.sh).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gradwire)
set(CPACK_PACKAGE_VENDOR "The gradwire authors")
set(CPACK_PACKAGE_CONTACT "The gradwire authors")
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL core dev run)
foreach(engine mpi ucx)
  if(TARGET gradwire_${engine})
    list(APPEND CPACK_COMPONENTS_ALL ${engine})
  endif()
endforeach()
# The installed libraries lie where the loader looks, and torch lies where its user says.
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/remove_rpaths.cmake")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${CPACK_PACKAGE_CONTACT}")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(same_version "libgradwire-core (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_CORE_PACKAGE_NAME libgradwire-core)
set(CPACK_DEBIAN_CORE_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CORE_DESCRIPTION "Collectives and compression of gradients between processes, without torch")
set(CPACK_DEBIAN_CORE_PACKAGE_SUGGESTS "libgradwire-ucx, libgradwire-mpi")
set(CPACK_DEBIAN_CORE_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/cmake/triggers")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libgradwire-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_DESCRIPTION "Headers of gradwire, and libgradwire.so for a libtorch that its user names
 Debian's libtorch is older than the one that gradwire needs, so this package depends on none.")
# libgradwire.so needs torch, which is no Debian package.
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${same_version}, libstdc++6 (>= 12), libc6 (>= 2.36)")

set(CPACK_DEBIAN_RUN_PACKAGE_NAME gradwire-run)
set(CPACK_DEBIAN_RUN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_RUN_DESCRIPTION "Starts, watches and stops the ranks of a program, on one host or on several")
set(CPACK_DEBIAN_RUN_PACKAGE_DEPENDS "${same_version}")

foreach(engine MPI UCX)
  string(TOLOWER ${engine} name)
  set(CPACK_DEBIAN_${engine}_PACKAGE_NAME libgradwire-${name})
  set(CPACK_DEBIAN_${engine}_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_${engine}_DESCRIPTION "The backend ${name} of gradwire")
  set(CPACK_DEBIAN_${engine}_PACKAGE_DEPENDS "${same_version}")
endforeach()
include(CPack)
