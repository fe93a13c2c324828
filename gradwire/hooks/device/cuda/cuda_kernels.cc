// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The table of CUDA's kernels. Needs no header of CUDA: torch gives the stream as a pointer.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>

#include "gradwire/hooks/device/codec_kernels_internal.h"

namespace gradwire::internal {
namespace {

cuda::Stream current_stream(const at::Device& device) {
  return static_cast<cuda::Stream>(c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle());
}

constexpr CodecKernels kKernels{cuda::kCudaLaunches, &current_stream};

enum class Runs : char { unknown, yes, no };

}  // namespace

const CodecKernels* find_cuda_kernels(const at::Device& device) {
  constexpr std::size_t kKnown = 64;
  static std::array<std::atomic<Runs>, kKnown> known{};
  const auto index = static_cast<std::size_t>(device.has_index() ? device.index() : 0);
  if (index >= kKnown) return nullptr;
  Runs runs = known[index].load(std::memory_order_relaxed);
  if (runs == Runs::unknown) {
    runs = cuda::runs_on(static_cast<int>(index)) ? Runs::yes : Runs::no;
    known[index].store(runs, std::memory_order_relaxed);
  }
  return runs == Runs::yes ? &kKernels : nullptr;
}

}  // namespace gradwire::internal
