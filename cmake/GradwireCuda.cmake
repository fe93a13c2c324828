# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# Whether the backend `nccl` can be built: a libtorch with CUDA, and the headers of CUDA and NCCL that libtorch's own
# include. No CUDA toolkit and no CUDA compiler. Sets GRADWIRE_CUDA_FOUND, GRADWIRE_CUDA_INCLUDES (folders for nccl.cc
# alone) and GRADWIRE_CUDA_LIBRARIES.
set(GRADWIRE_CUDA AUTO CACHE STRING "The backend nccl: AUTO (where a libtorch with CUDA and its headers are found), ON or OFF")
set_property(CACHE GRADWIRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GRADWIRE_CUDA_HINTS "" CACHE STRING "Folders with headers of CUDA and NCCL, before those that are looked into anyway")

# Beside torch, where a Python environment has them; then a toolkit.
file(GLOB gradwire_cuda_places "${GRADWIRE_TORCH_DIR}/../nvidia/*/include")
set(GRADWIRE_CUDA_FOUND OFF)
set(GRADWIRE_CUDA_INCLUDES)
set(GRADWIRE_CUDA_LIBRARIES "${GRADWIRE_TORCH_DIR}/lib/libtorch_cuda.so" "${GRADWIRE_TORCH_DIR}/lib/libc10_cuda.so")
set(gradwire_cuda_missing)
foreach(file IN ITEMS ${GRADWIRE_CUDA_LIBRARIES} "${GRADWIRE_TORCH_DIR}/include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp")
  if(NOT EXISTS "${file}")
    list(APPEND gradwire_cuda_missing "${file}")
  endif()
endforeach()
if(NOT gradwire_cuda_missing)
  foreach(header IN ITEMS cuda_runtime_api.h crt/host_config.h nv/target cublas_v2.h cusparse.h cusolverDn.h nccl.h)
    unset(gradwire_cuda_folder)
    find_path(gradwire_cuda_folder ${header} NO_CACHE HINTS ${GRADWIRE_CUDA_HINTS} ${gradwire_cuda_places} PATHS /usr/local/cuda/include)
    if(gradwire_cuda_folder)
      list(APPEND GRADWIRE_CUDA_INCLUDES "${gradwire_cuda_folder}")
    else()
      list(APPEND gradwire_cuda_missing ${header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES GRADWIRE_CUDA_INCLUDES)
endif()

list(JOIN gradwire_cuda_missing ", " gradwire_cuda_missing)
if(GRADWIRE_CUDA STREQUAL "OFF")
  message(STATUS "gradwire: no backend 'nccl', by GRADWIRE_CUDA=OFF")
elseif(NOT gradwire_cuda_missing)
  set(GRADWIRE_CUDA_FOUND ON)
  message(STATUS "gradwire: backend 'nccl', with headers in ${GRADWIRE_CUDA_INCLUDES}")
elseif(GRADWIRE_CUDA STREQUAL "AUTO")
  message(STATUS "gradwire: no backend 'nccl', for there is no ${gradwire_cuda_missing}; everything else stays")
else()
  message(FATAL_ERROR "gradwire: GRADWIRE_CUDA=${GRADWIRE_CUDA}, but there is no ${gradwire_cuda_missing}. The backend 'nccl' needs "
    "a CUDA build of torch (-DGRADWIRE_TORCH_DIR=...) and the headers of CUDA and NCCL that belong to it, which pip installs beside it "
    "(nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl, nvidia-cublas, nvidia-cusparse, nvidia-cusolver, nvidia-nccl); GRADWIRE_CUDA_HINTS names other folders.")
endif()
