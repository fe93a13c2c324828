// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A fake device with streams, for machines without a GPU. The device is libtorch's PrivateUse1. Its kernels run on the
// CPU at once. The addresses of its memory are reserved but not readable: code of the host that follows a pointer into
// the memory of the device gets SIGSEGV, as on a machine with a GPU. The device checks the order that streams and
// events promise: each kernel is an access of its current stream to memory. Two accesses to the same bytes, of which
// one is a write, are a race unless events order them. Memory that returns to the allocator while a stream may still
// use it is a race too. A program without races here may run its streams in any order that events allow. A copy to the
// host does not count as a wait of the host, so code that works only because the host waited has a race too. A copy
// with non_blocking shows its result only when the host has waited for an event behind it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/test_device.h"

namespace gradwire::testing {

inline constexpr c10::DeviceType kFakeDevice = c10::DeviceType::PrivateUse1;
inline constexpr int kFakeDevices = 4;

// Device `index` of kFakeDevices. Registers the device when first called.
c10::Device fake_device(int index);

// Returns the races so far, one line each, and clears the list.
std::vector<std::string> take_fake_races();

// Returns the bytes that copies have brought from devices to the host so far, and begins to count anew.
std::size_t take_fake_bytes_to_host();

// Records an access of `stream` to the memory of `tensor`, as a kernel does.
void access_on(const c10::Stream& stream, const at::Tensor& tensor, bool writes);

// Queues work of the device on `stream`: the first thread of the host that waits for an event behind it calls `done`,
// and no thread that waits returns before that. `done` must not wait for the device.
void work_on(const c10::Stream& stream, std::function<void()> done);

// Work of the device on `stream` that takes so many seconds of the device's clock. Nothing else takes time there.
void spend_on(const c10::Stream& stream, double seconds);

// While a FakeCapture lives, `stream` is captured into a graph. A question for an event is an error then, as on CUDA:
// it is listed among the races.
class FakeCapture {
 public:
  explicit FakeCapture(const c10::Stream& stream);
  ~FakeCapture();
  FakeCapture(const FakeCapture&) = delete;
  FakeCapture& operator=(const FakeCapture&) = delete;

 private:
  const c10::Stream stream_;
};

}  // namespace gradwire::testing
