# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# gradwire_room(NAME LAYER core|torch SOURCES ... [APART] [DEPENDS room...] [LIBS lib...])
#   One room, one object library `gradwire_<NAME>`; its objects go into the shared library of its layer.
#   Its sources are compiled in batches (GRADWIRE_UNITY) unless the room says APART.
#   DEPENDS names rooms, which must lie below or beside it; the include check in scripts/ enforces the line.
# gradwire_test(NAME SOURCES ... [LAYER core|torch] [LABELS ...] [LIBS ...] [ARGS ...] [TIMEOUT s] [LONG] [OWN_NEW])
# gradwire_test(NAME PROGRAM name ARGS ... [LAYER ...] [LABELS ...] [TIMEOUT s])   another run of the program of another test
#   A GoogleTest program `<NAME>` in build/bin/tests, registered with ctest one test a program. Labels: fast (the default), slow, per_kernel,
#   one_thread (starts no thread, and takes long under a sanitizer), multiproc (starts processes of its own: takes two places among the
#   tests at a time), chaos (kills them: runs alone).
#   LONG: takes half a minute or more, and starts before the others, so that it does not run alone at the end.
#   OWN_NEW: replaces operator new; not built for ThreadSanitizer, which replaces it too.
# gradwire_test(NAME IN program SOURCES name_test.cc ... [LAYER ...] [LABELS ...] [ARGS ...] [TIMEOUT s])
#   The same in a program that several tests share: its sources are compiled in batches (GRADWIRE_UNITY), so each has a namespace of
#   its own. ctest still runs each test as a process of its own, with the names of its sources as arguments (tests/support/test_main.cc).
#   A filter of tests in ARGS has the last word over those names.
# gradwire_program(NAME LAYER core|torch SOURCES ... [LIBS ...] [WHOLE_TORCH])
#   A program in build/bin. WHOLE_TORCH: its sources include torch/torch.h.
# gradwire_library(core|torch)
#   The shared library of one layer out of the rooms declared so far.
# gradwire_compile_lightly(TARGET)
#   -O1 in a release build, for what spends its time in the libraries: tests and programs. They are most of the build, and take up to
#   half the time to compile; the libraries themselves are compiled as ever.
# gradwire_compile_in_batches(TARGET SIZE)
#   SIZE sources of TARGET in one compilation, unless GRADWIRE_UNITY is off: most of a source is templates that its headers bring,
#   and the sources of a batch pay for them once.

function(gradwire_compile_in_batches TARGET SIZE)
  if(GRADWIRE_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SIZE})
  endif()
endfunction()

function(gradwire_compile_lightly TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

function(gradwire_room NAME)
  cmake_parse_arguments(R "APART" "LAYER" "SOURCES;DEPENDS;LIBS" ${ARGN})
  set(target gradwire_${NAME})
  add_library(${target} OBJECT ${R_SOURCES})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${target} PRIVATE gradwire_flags PUBLIC Threads::Threads ${R_LIBS})
  foreach(room IN LISTS R_DEPENDS)
    target_link_libraries(${target} PUBLIC gradwire_${room})
  endforeach()
  if(R_LAYER STREQUAL "torch")
    target_link_libraries(${target} PUBLIC gradwire::torch)
    gradwire_use_torch_pch(${target})
  endif()
  if(NOT R_APART)
    gradwire_compile_in_batches(${target} 8)
  endif()
  set_property(GLOBAL APPEND PROPERTY GRADWIRE_ROOMS_${R_LAYER} ${target})
  set_property(GLOBAL APPEND PROPERTY GRADWIRE_LIBS_${R_LAYER} ${R_LIBS})
endfunction()

function(gradwire_library LAYER)
  get_property(rooms GLOBAL PROPERTY GRADWIRE_ROOMS_${LAYER})
  get_property(libs GLOBAL PROPERTY GRADWIRE_LIBS_${LAYER})
  list(REMOVE_DUPLICATES libs)
  set(objects)
  foreach(room IN LISTS rooms)
    list(APPEND objects $<TARGET_OBJECTS:${room}>)
  endforeach()
  if(LAYER STREQUAL "core")
    set(target gradwire_core)
    add_library(${target} SHARED ${objects})
    add_library(gradwire::core ALIAS ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME core)
    target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE ${libs})
  else()
    set(target gradwire)
    add_library(${target} SHARED ${objects})
    add_library(gradwire::gradwire ALIAS ${target})
    target_link_libraries(${target} PUBLIC gradwire_core gradwire::torch PRIVATE ${libs})
    gradwire_remember_torch(${target})
  endif()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  # A library calls its own functions, whatever the program defines.
  target_link_options(${target} PRIVATE "LINKER:-Bsymbolic-functions")
  gradwire_hide_bundled_names(${target})
  if(NOT SKBUILD)  # a wheel holds no links, so each name would be a copy
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  endif()
  # The tree before every other include folder, so that no installed copy of gradwire shadows it.
  target_include_directories(${target} BEFORE PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
endfunction()

# Installed, TARGET looks for libtorch where it was at build time. (CMake would do this by itself, but not for folders below the
# source folder, where .venv/ is.)
function(gradwire_remember_torch TARGET)
  if(SKBUILD)  # site-packages/gradwire beside site-packages/torch, wherever that is
    set_property(TARGET ${TARGET} APPEND PROPERTY INSTALL_RPATH "$ORIGIN/../torch/lib")
  else()
    set_property(TARGET ${TARGET} APPEND PROPERTY INSTALL_RPATH "${GRADWIRE_TORCH_DIR}/lib")
  endif()
endfunction()

function(gradwire_link_layer TARGET LAYER)
  target_link_libraries(${TARGET} PRIVATE gradwire_flags)
  if(LAYER STREQUAL "torch")
    target_link_libraries(${TARGET} PRIVATE gradwire::gradwire)
    # -fPIC as in the libraries, not the -fPIE of programs: the compiler refuses a precompiled header built with the other.
    set_target_properties(${TARGET} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${TARGET} PRIVATE -fPIC)
    gradwire_use_torch_pch(${TARGET} ${ARGN})
  else()
    target_link_libraries(${TARGET} PRIVATE gradwire::core)
  endif()
endfunction()

# One precompiled header for the tests below the line that are compiled with the same FLAGS. Above it, libtorch's is the one that a
# source may have.
function(gradwire_use_test_pch TARGET FLAGS)
  set(pch "gradwire_test_pch${FLAGS}")
  if(NOT TARGET ${pch})
    add_library(${pch} OBJECT "${PROJECT_SOURCE_DIR}/cmake/test_pch.cc")
    target_link_libraries(${pch} PRIVATE gradwire_flags GTest::gtest Threads::Threads)
    # As the tests themselves, which are programs.
    set_target_properties(${pch} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${pch} PRIVATE -fPIE ${FLAGS})
    target_precompile_headers(${pch} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/test_pch.h")
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${pch})
endfunction()

# The program TARGET for tests, with more sources if it is there already.
function(gradwire_shared_test_program TARGET LAYER)
  cmake_parse_arguments(S "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  list(TRANSFORM S_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  if(NOT TARGET ${TARGET})
    gradwire_test_program(${TARGET} ${LAYER} SOURCES "${PROJECT_SOURCE_DIR}/tests/support/test_main.cc" LIBS GTest::gtest
      LABELS ${S_LABELS})
    gradwire_compile_in_batches(${TARGET} 6)
  endif()
  get_target_property(known ${TARGET} SOURCES)
  list(REMOVE_ITEM S_SOURCES ${known})
  target_sources(${TARGET} PRIVATE ${S_SOURCES})
  target_link_libraries(${TARGET} PRIVATE ${S_LIBS})
endfunction()

# In a sanitized build a test takes Clang a third of the time to compile at -O0. Those that go through every kernel compute so much themselves
# that they would lose more than that when they run.
function(gradwire_test_program TARGET LAYER)
  cmake_parse_arguments(P "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${TARGET} ${P_SOURCES})
  set_target_properties(${TARGET} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin/tests")
  gradwire_link_layer(${TARGET} ${LAYER})
  target_link_libraries(${TARGET} PRIVATE ${P_LIBS})
  gradwire_compile_lightly(${TARGET})
  if(LAYER STREQUAL "core")
    set(flags)
    if(GRADWIRE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT "per_kernel" IN_LIST P_LABELS)
      set(flags -O0)
    endif()
    target_compile_options(${TARGET} PRIVATE ${flags})
    gradwire_use_test_pch(${TARGET} "${flags}")
  endif()
endfunction()

# COST of a LONG test for ctest, which starts the costly ones first.
set(GRADWIRE_LONG_TEST 60)

function(gradwire_test NAME)
  cmake_parse_arguments(T "LONG;OWN_NEW" "LAYER;TIMEOUT;PROGRAM;IN" "SOURCES;LABELS;LIBS;ARGS" ${ARGN})
  if(NOT GRADWIRE_TESTS OR (T_OWN_NEW AND GRADWIRE_SANITIZE MATCHES "thread"))
    return()
  endif()
  if(NOT T_LAYER)
    set(T_LAYER core)
  endif()
  if(NOT T_LABELS)
    set(T_LABELS fast)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(T_IN)
    set(T_PROGRAM ${T_IN})
    gradwire_shared_test_program(${T_IN} ${T_LAYER} SOURCES ${T_SOURCES} LIBS ${T_LIBS} LABELS ${T_LABELS})
    list(FILTER T_SOURCES INCLUDE REGEX "_test\\.cc$")
    list(TRANSFORM T_SOURCES REPLACE ".*/" "")
    list(APPEND T_ARGS ${T_SOURCES})
  elseif(NOT T_PROGRAM)
    set(T_PROGRAM ${NAME})
    gradwire_test_program(${NAME} ${T_LAYER} SOURCES ${T_SOURCES} LIBS GTest::gtest_main ${T_LIBS} LABELS ${T_LABELS})
  endif()
  add_test(NAME ${NAME} COMMAND ${T_PROGRAM} ${T_ARGS})
  set_tests_properties(${NAME} PROPERTIES LABELS "${T_LABELS};${T_LAYER}" TIMEOUT ${T_TIMEOUT}
    ENVIRONMENT_MODIFICATION "GTEST_OUTPUT=set:xml:${CMAKE_BINARY_DIR}/test-results/${NAME}.xml")
  if("chaos" IN_LIST T_LABELS)
    set_tests_properties(${NAME} PROPERTIES RUN_SERIAL ON)
  elseif("multiproc" IN_LIST T_LABELS)
    set_tests_properties(${NAME} PROPERTIES PROCESSORS 2)
  endif()
  if(T_LONG)
    set_tests_properties(${NAME} PROPERTIES COST ${GRADWIRE_LONG_TEST})
  endif()
endfunction()

function(gradwire_program NAME)
  cmake_parse_arguments(P "WHOLE_TORCH" "LAYER" "SOURCES;LIBS" ${ARGN})
  add_executable(${NAME} ${P_SOURCES})
  set(torch_pch)
  if(P_WHOLE_TORCH)
    set(torch_pch WHOLE)
  endif()
  gradwire_link_layer(${NAME} ${P_LAYER} ${torch_pch})
  target_link_libraries(${NAME} PRIVATE ${P_LIBS})
  if(P_LAYER STREQUAL "torch" OR "gradwire::gradwire" IN_LIST P_LIBS)
    gradwire_remember_torch(${NAME})
  endif()
endfunction()
