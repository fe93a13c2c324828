// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of the codecs for one kind of device, and the one place that decides where they are used. A device
// without them has ATen's operators (dense_codecs.cc, sparse_codecs.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "gradwire/hooks/device/cuda/launch_internal.h"

namespace gradwire::internal {

struct CodecKernels {
  cuda::Launches launches;
  cuda::Stream (*current_stream)(const at::Device& device);  // of the calling thread
};

// The kernels for `device`, or null. What it returns lives as long as the process. Thread-safe.
using FindCodecKernels = const CodecKernels* (*)(const at::Device& device);

// Which devices can run the kernels, as far as is known: an answer is remembered, and `unknown` is asked again the next
// time. Thread-safe.
class KnownDevices {
 public:
  // Whether device `index` runs the kernels, by `ask`, if need be. False for devices beyond the 64th.
  bool runs_on(int index, cuda::Runs (*ask)(int index)) {
    const auto place = static_cast<std::size_t>(index);
    if (place >= known_.size()) return false;
    cuda::Runs runs = known_[place].load(std::memory_order_relaxed);
    if (runs == cuda::Runs::unknown) {
      runs = ask(index);
      known_[place].store(runs, std::memory_order_relaxed);
    }
    return runs == cuda::Runs::yes;
  }

 private:
  std::array<std::atomic<cuda::Runs>, 64> known_{};
};

// CUDA's kernels for a CUDA device that can run them, where this build has them; else null. GRADWIRE_CUDA_KERNELS=off
// in the environment of the process turns them off.
const CodecKernels* find_codec_kernels(const at::Device& device);

// find_codec_kernels() for a CUDA device. In cuda/cuda_kernels.cc, or cuda/cuda_kernels_stub.cc where nvcc or CUDA's
// torch was not found.
const CodecKernels* find_cuda_kernels(const at::Device& device);

}  // namespace gradwire::internal
