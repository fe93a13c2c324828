// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A fake device with streams, for machines without a GPU. The device is libtorch's PrivateUse1. Its memory is host
// memory, and its kernels run on the CPU at once. The device checks the order that streams and events promise: each
// kernel is an access of its current stream to memory. Two accesses to the same bytes, of which one is a write, are a
// race unless events order them. Memory that returns to the allocator while a stream may still use it is a race too. A
// program without races here may run its streams in any order that events allow. A copy to the host does not count as a
// wait of the host, so code that works only because the host waited has a race too.
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

// Returns the races so far, one line each, and clears the list.
std::vector<std::string> take_fake_races();

// Records an access of `stream` to the memory of `tensor`, as a kernel does.
void access_on(const c10::Stream& stream, const at::Tensor& tensor, bool writes);

// An engine that behaves like NCCL, for ranks that are threads: all_reduce (SUM), broadcast, all_gather_base. An
// asynchronous call runs on the engine's own stream, between events. A synchronous call runs on the caller's stream,
// and returns no Work. The engines of all ranks of a group share a `meeting`.
c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size);

}  // namespace gradwire::testing
