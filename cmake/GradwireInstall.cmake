# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: libraries, public headers, programs, and the packages for find_package(gradwire) and for pkg-config.
# Components: core, mpi, ucx, dev, run (what a Debian package holds, GradwirePackages.cmake), bench, and python (a wheel, or the package
# in a prefix). The target gradwire_installed builds all that is installed, and nothing else.
include(CMakePackageConfigHelpers)
add_custom_target(gradwire_installed)
# install(TARGETS name ARGUMENTS...), and gradwire_installed builds the target.
function(gradwire_install NAME)
  install(TARGETS ${NAME} ${ARGN})
  add_dependencies(gradwire_installed ${NAME})
endfunction()
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gradwire")

set(installed_rooms base observe kernels store backend compress membership)
if(GRADWIRE_TORCH)
  list(APPEND installed_rooms process_group functional ddp hooks nn amp optim elastic testing)
endif()
foreach(room IN LISTS installed_rooms)
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/gradwire/${room}")
    install(DIRECTORY gradwire/${room} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire" COMPONENT dev
      FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE PATTERN "*_test*.h" EXCLUDE)
  endif()
endforeach()

install(FILES gradwire/core.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire" COMPONENT dev)
if(GRADWIRE_TORCH)
  install(FILES gradwire/gradwire.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/gradwire" COMPONENT dev)
endif()

gradwire_install(gradwire_core EXPORT gradwire-core-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT core NAMELINK_COMPONENT dev)
foreach(engine mpi ucx)
  if(TARGET gradwire_${engine})
    gradwire_install(gradwire_${engine}  # loaded, never linked
      LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${engine} NAMELINK_SKIP)
  endif()
endforeach()
install(EXPORT gradwire-core-targets NAMESPACE gradwire:: DESTINATION "${package_dir}" COMPONENT dev)
file(RELATIVE_PATH gradwire_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/gradwire-core.pc.in "${PROJECT_BINARY_DIR}/cmake/gradwire-core.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/cmake/gradwire-core.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
if(GRADWIRE_TORCH)
  gradwire_install(gradwire EXPORT gradwire-torch-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
  if(TARGET gradwire_cuda_kernels)  # of gradwire alone
    gradwire_install(gradwire_cuda_kernels EXPORT gradwire-torch-targets
      LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev NAMELINK_SKIP)
  endif()
  install(EXPORT gradwire-torch-targets NAMESPACE gradwire:: DESTINATION "${package_dir}" COMPONENT dev)
  install(FILES cmake/GradwireFindTorch.cmake DESTINATION "${package_dir}" COMPONENT dev)
endif()
if(SKBUILD AND TARGET gradwire-run)
  # From an environment's bin/ to the libraries in its site-packages/.
  set_property(TARGET gradwire-run gradwire-diagnose APPEND PROPERTY INSTALL_RPATH
    "$ORIGIN/../lib/python${GRADWIRE_PYTHON_VERSION}/site-packages/gradwire")
  install(TARGETS gradwire-run gradwire-diagnose RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
endif()
foreach(program gradwire-run gradwire-diagnose gradwire-bench)
  if(TARGET ${program})
    set(component run)
    if(program STREQUAL "gradwire-bench")
      set(component bench)
    endif()
    gradwire_install(${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT ${component})
  endif()
endforeach()
if(TARGET gradwire_python AND NOT SKBUILD)
  # The Python package as it lies in build/python: PYTHONPATH=<prefix>/lib/gradwire/python.
  set(python_dir "${CMAKE_INSTALL_LIBDIR}/gradwire/python")
  file(RELATIVE_PATH python_to_lib "/${python_dir}/gradwire" "/${CMAKE_INSTALL_LIBDIR}")
  set_property(TARGET gradwire_python APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${python_to_lib}")
  gradwire_install(gradwire_python LIBRARY DESTINATION "${python_dir}/gradwire" COMPONENT python)
  install(DIRECTORY python/gradwire DESTINATION "${python_dir}" COMPONENT python PATTERN "__pycache__" EXCLUDE)
  install(FILES "${PROJECT_BINARY_DIR}/python/gradwire/_build.py" DESTINATION "${python_dir}/gradwire" COMPONENT python)
  install(FILES python/gradwire_autoload.py DESTINATION "${python_dir}" COMPONENT python)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/python/gradwire-${PROJECT_VERSION}.dist-info" DESTINATION "${python_dir}" COMPONENT python)
  # gradwire-plan predicts from what gradwire-bench measures.
  set(GRADWIRE_PLAN_FOLDER "../${python_dir}/gradwire")
  configure_file(launch/gradwire-plan.in "${PROJECT_BINARY_DIR}/cmake/gradwire-plan" @ONLY)
  install(PROGRAMS "${PROJECT_BINARY_DIR}/cmake/gradwire-plan" DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT python)
endif()

configure_package_config_file(cmake/gradwireConfig.cmake.in "${PROJECT_BINARY_DIR}/cmake/gradwireConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/gradwireConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/gradwireConfig.cmake" "${PROJECT_BINARY_DIR}/cmake/gradwireConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT dev)
# Where README.md links to: share/doc/gradwire/docs/ddp.md.
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT dev)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT dev FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
# The examples, to read and to copy.
install(DIRECTORY examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT dev FILES_MATCHING PATTERN "*.md" PATTERN "*.cc" PATTERN "*.h"
  PATTERN "*.py" PATTERN "*_test.cc" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(FILES launch/gradwire-run.bash RENAME gradwire-run DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT run)
if(SKBUILD AND GRADWIRE_BUNDLED_DEPENDENCIES)
  foreach(library libspdlog libfmt libhwy libssl)
    if(EXISTS "/usr/share/doc/${library}-dev/copyright")
      install(FILES "/usr/share/doc/${library}-dev/copyright" DESTINATION gradwire/licenses RENAME ${library}.txt COMPONENT python)
    endif()
  endforeach()
endif()
