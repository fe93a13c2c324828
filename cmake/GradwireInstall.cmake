# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: libraries, public headers, programs and the package for find_package(gradwire).
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gradwire")

set(installed_rooms base observe kernels store backend compress membership)
if(GRADWIRE_TORCH)
  list(APPEND installed_rooms process_group functional ddp hooks nn amp optim elastic testing)
endif()
foreach(room IN LISTS installed_rooms)
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/gradwire/${room}")
    install(DIRECTORY gradwire/${room} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire"
      FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE PATTERN "*_test*.h" EXCLUDE)
  endif()
endforeach()

install(FILES gradwire/core.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire")
if(GRADWIRE_TORCH)
  install(FILES gradwire/gradwire.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire")
endif()

install(TARGETS gradwire_core EXPORT gradwire-core-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
foreach(plugin gradwire_mpi gradwire_ucx)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" NAMELINK_SKIP)  # loaded, never linked
  endif()
endforeach()
install(EXPORT gradwire-core-targets NAMESPACE gradwire:: DESTINATION "${package_dir}")
if(GRADWIRE_TORCH)
  install(TARGETS gradwire EXPORT gradwire-torch-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT gradwire-torch-targets NAMESPACE gradwire:: DESTINATION "${package_dir}")
  install(FILES cmake/GradwireFindTorch.cmake DESTINATION "${package_dir}")
endif()
if(SKBUILD AND TARGET gradwire-run)
  # From an environment's bin/ to the libraries in its site-packages/.
  set_property(TARGET gradwire-run gradwire-diagnose APPEND PROPERTY INSTALL_RPATH
    "$ORIGIN/../lib/python${GRADWIRE_PYTHON_VERSION}/site-packages/gradwire")
  install(TARGETS gradwire-run gradwire-diagnose RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
endif()
foreach(program gradwire-run gradwire-diagnose gradwire-bench)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endforeach()

configure_package_config_file(cmake/gradwireConfig.cmake.in "${PROJECT_BINARY_DIR}/cmake/gradwireConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/gradwireConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/gradwireConfig.cmake" "${PROJECT_BINARY_DIR}/cmake/gradwireConfigVersion.cmake"
  DESTINATION "${package_dir}")
# Where README.md links to: share/doc/gradwire/docs/ddp.md.
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
# The examples, to read and to copy.
install(DIRECTORY examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md" PATTERN "*.cc" PATTERN "*.h" PATTERN "*.py"
  PATTERN "*_test.cc" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(FILES launch/gradwire-run.bash RENAME gradwire-run DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
