// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory for tests, of the host or of the first GPU. GRADWIRE_HAS_CUDA_KERNELS says whether nvcc has built the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "gradwire/hooks/device/cuda/launch_internal.h"

#if GRADWIRE_HAS_CUDA_KERNELS
#include <cuda_runtime_api.h>
#endif

namespace gradwire::cuda {

#if GRADWIRE_HAS_CUDA_KERNELS
inline void require(int error) {
  if (error != 0) throw std::runtime_error(error_text(error));
}
inline bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 && runs_on(0) == Runs::yes;
}
inline void* allocate_on_device(std::size_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, bytes));
  return memory;
}
inline void free_on_device(void* memory) { static_cast<void>(cudaFree(memory)); }
// Waits for what is queued on the stream of the device; in either direction.
inline void copy_to_or_from_device(void* to, const void* from, std::size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
inline const Launches* cuda_launches() { return &kCudaLaunches; }
#else
inline bool has_device() { return false; }
inline void* allocate_on_device(std::size_t) { throw std::runtime_error("this build has no CUDA"); }
inline void free_on_device(void*) {}
inline void copy_to_or_from_device(void*, const void*, std::size_t) {}
inline const Launches* cuda_launches() { return nullptr; }
#endif

// Aligned as the memory of an allocator of CUDA. Its end is the end of an allocation, so that tools see what goes
// beyond.
class TestMemory {
 public:
  TestMemory(bool on_device, std::size_t bytes)
      : on_device_(on_device),
        memory_(on_device ? allocate_on_device(bytes) : ::operator new (bytes, std::align_val_t{16})) {}
  ~TestMemory() {
    if (on_device_) {
      free_on_device(memory_);
    } else {
      ::operator delete (memory_, std::align_val_t{16});
    }
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  // The address of element `index`.
  template <class T>
  T* at(std::size_t index) const {
    if constexpr (std::is_void_v<T>) {
      return static_cast<std::byte*>(memory_) + index;
    } else {
      return static_cast<T*>(memory_) + index;
    }
  }
  void write(std::size_t first, const void* from, std::size_t bytes) const { copy(at<std::byte>(first), from, bytes); }
  void read(std::size_t first, void* to, std::size_t bytes) const { copy(to, at<std::byte>(first), bytes); }

 private:
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (on_device_) {
      copy_to_or_from_device(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  const bool on_device_;
  void* const memory_;
};

}  // namespace gradwire::cuda
