// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Streams of devices that follow one another, for buckets that one stream fills, a lane's reduces and another uses.
// c10's generic streams: nothing here needs CUDA, and nothing is done for the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace gradwire::internal {

// What some streams have queued up to a point, which others wait for. Not thread-safe; may go from thread to thread.
class StreamFence {
 public:
  // The stream that is current for `device` on this thread is one of them.
  void add_current(const at::Device& device);
  // The point is now.
  void record();
  // The stream that is current on this thread for each of their devices waits; the CPU does not. Nothing before
  // record().
  void wait() const;

 private:
  std::vector<c10::Stream> streams_;  // each once
  std::vector<c10::Event> events_;    // one a stream
};

// The streams of one thread, one a device, which it makes when it first needs one.
class OwnStreams {
 public:
  // `device` is not the CPU.
  c10::Stream on(const at::Device& device);

 private:
  std::vector<c10::Stream> streams_;
};

// Tells the allocator of the tensor's device that the current stream there uses it, so that its memory is not handed
// out anew before that has ended. Undefined tensors, those on the CPU: nothing.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace gradwire::internal
