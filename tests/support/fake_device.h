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

#include <atomic>
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

// Returns the bytes that copies have brought from devices to the host so far, and begins to count anew.
std::size_t take_fake_bytes_to_host();

// Records an access of `stream` to the memory of `tensor`, as a kernel does.
void access_on(const c10::Stream& stream, const at::Tensor& tensor, bool writes);

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

// What goes wrong with the kernels of the engines that share it. Thread-safe.
struct FakeFaults {
  // True: a kernel ends only when its engine is aborted, and ends as if all was well, without a result. The call
  // returns at once and waits for no other rank.
  std::atomic<bool> hang{false};
  // The rank whose kernels fail: they end as if all was well, without a result, and getError() tells. -1: none.
  std::atomic<int> failing_rank{-1};
};

// An engine that behaves like NCCL, for ranks that are threads: all_reduce (SUM), broadcast, all_gather_base,
// all_to_all_base in equal parts. An
// asynchronous call runs on the engine's own stream, between events. A synchronous call runs on the caller's stream,
// and returns no Work. The engines of all ranks of a group share a `meeting`. `faults` may be null.
c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size,
                                                   std::shared_ptr<FakeFaults> faults = nullptr);

}  // namespace gradwire::testing
