# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Whether the codecs' CUDA kernels (gradwire/hooks/device/cuda) are built: with nvcc, for a libtorch with CUDA. Without them the codecs
# are ATen's operators on CUDA devices too. Sets GRADWIRE_CUDA_KERNELS_FOUND, and enables the language CUDA.
set(GRADWIRE_CUDA_KERNELS AUTO CACHE STRING
    "The codecs' CUDA kernels: AUTO (where nvcc and a libtorch with CUDA are found), ON (nvcc must be there, libtorch may be any) or OFF")
set_property(CACHE GRADWIRE_CUDA_KERNELS PROPERTY STRINGS AUTO ON OFF)
set(GRADWIRE_CUDA_ARCHITECTURES "80;90" CACHE STRING "The GPUs that the CUDA kernels are compiled for; later ones use the last by its PTX")

set(GRADWIRE_CUDA_KERNELS_FOUND OFF)
find_program(GRADWIRE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(GRADWIRE_NVCC)
set(gradwire_nvcc_version 0)
if(GRADWIRE_NVCC)
  execute_process(COMMAND "${GRADWIRE_NVCC}" --version OUTPUT_VARIABLE gradwire_nvcc_says ERROR_QUIET)
  if(gradwire_nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
    set(gradwire_nvcc_version ${CMAKE_MATCH_1})
  endif()
endif()
if(GRADWIRE_CUDA_KERNELS STREQUAL "OFF")
  message(STATUS "gradwire: no CUDA kernels, by GRADWIRE_CUDA_KERNELS=OFF")
elseif(GRADWIRE_CUDA_KERNELS STREQUAL "AUTO" AND (GRADWIRE_CUDA STREQUAL "OFF" OR NOT EXISTS "${GRADWIRE_TORCH_DIR}/lib/libtorch_cuda.so"))
  message(STATUS "gradwire: no CUDA kernels, for this build has no torch with CUDA")
elseif(GRADWIRE_CUDA_KERNELS STREQUAL "AUTO" AND GRADWIRE_SANITIZE)
  message(STATUS "gradwire: no CUDA kernels, for nvcc has no sanitizers")
elseif(GRADWIRE_NVCC AND gradwire_nvcc_version VERSION_GREATER_EQUAL 12.0)
  set(GRADWIRE_CUDA_KERNELS_FOUND ON)
elseif(GRADWIRE_NVCC AND GRADWIRE_CUDA_KERNELS STREQUAL "AUTO")
  message(STATUS "gradwire: no CUDA kernels, for ${GRADWIRE_NVCC} is version ${gradwire_nvcc_version}, and C++20 needs 12.0")
elseif(GRADWIRE_CUDA_KERNELS STREQUAL "AUTO")
  message(STATUS "gradwire: no CUDA kernels, for there is no nvcc (GRADWIRE_NVCC); the codecs use torch's operators on CUDA devices")
else()
  message(FATAL_ERROR "gradwire: GRADWIRE_CUDA_KERNELS=${GRADWIRE_CUDA_KERNELS}, but there is no nvcc of version 12.0 or newer; name one with -DGRADWIRE_NVCC=...")
endif()

if(GRADWIRE_CUDA_KERNELS_FOUND)
  # Machine code for each, and PTX of the last.
  set(gradwire_architectures ${GRADWIRE_CUDA_ARCHITECTURES})
  list(POP_BACK gradwire_architectures gradwire_last_architecture)
  list(TRANSFORM gradwire_architectures APPEND "-real")
  set(CMAKE_CUDA_ARCHITECTURES ${gradwire_architectures} ${gradwire_last_architecture})
  set(CMAKE_CUDA_COMPILER "${GRADWIRE_NVCC}")
  enable_language(CUDA)
  # CMake 3.25 knows no C++20 of nvcc, and would refuse; with no default it adds no dialect, and the target names its own.
  set(CMAKE_CUDA_STANDARD_DEFAULT "")
  if(GRADWIRE_TESTS)
    find_package(CUDAToolkit REQUIRED)  # CUDA::cudart_static, for programs that allocate memory for the kernels
  endif()
  message(STATUS "gradwire: CUDA kernels for ${GRADWIRE_CUDA_ARCHITECTURES}, by ${GRADWIRE_NVCC} ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
