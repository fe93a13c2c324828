// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A device with streams, for machines without one: libtorch's PrivateUse1, whose memory is the host's and whose kernels
// are the CPU's, run at once. What it watches is the order that streams and events promise: each kernel is an access of
// its current stream to memory, and two accesses to the same bytes, one of them a write, are a race unless events order
// them; so is memory that goes back to the allocator while a stream may still use it. A program without races here may
// run its streams in any order that events allow. A copy to the host does not count as waiting for it, so what only
// works because the host waited is a race too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tests/support/local_group.h"

namespace gradwire::testing {

inline constexpr c10::DeviceType kFakeDevice = c10::DeviceType::PrivateUse1;
inline constexpr int kFakeDevices = 4;

// Device `index` of kFakeDevices. Registers the device when first called.
c10::Device fake_device(int index);

// The stream that is current for `device` on this thread, and a new one.
c10::Stream current_fake_stream(const c10::Device& device);
c10::Stream new_fake_stream(const c10::Device& device);

// What went wrong so far, one line each; and forgets it.
std::vector<std::string> take_fake_races();

// An access of `stream` to the memory of `tensor`, as by a kernel.
void access_on(const c10::Stream& stream, const at::Tensor& tensor, bool writes);

// An engine as NCCL is one, for ranks that are threads: all_reduce (SUM), broadcast, all_gather_base. An asynchronous
// call runs on a stream of the engine's own, between events; any other on the caller's, and returns no Work. All ranks'
// engines of a group share a `meeting`.
c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size);

}  // namespace gradwire::testing
