// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The table of CUDA's kernels. Needs no header of CUDA: torch gives the stream as a pointer.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "gradwire/hooks/device/codec_kernels_internal.h"

namespace gradwire::internal {
namespace {

cuda::Stream current_stream(const at::Device& device) {
  return static_cast<cuda::Stream>(c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle());
}

constexpr CodecKernels kKernels{cuda::kCudaLaunches, &current_stream};

}  // namespace

const CodecKernels* find_cuda_kernels(const at::Device& device) {
  static KnownDevices known;
  const c10::DeviceIndex index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  // runs_on() leaves another device current; torch's guard goes back, and gives the device before no context.
  const c10::DeviceGuard here(at::Device(device.type(), index));
  return known.runs_on(index, &cuda::runs_on) ? &kKernels : nullptr;
}

}  // namespace gradwire::internal
