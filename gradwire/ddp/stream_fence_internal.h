// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order between streams of devices. One stream fills a bucket, a lane's stream reduces it, and another stream uses
// it. The file uses c10's generic streams: it needs no CUDA, and does nothing for the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace gradwire::internal {

// The work that some streams have queued up to a point. Other streams can wait for that point. Not thread-safe, but may
// be passed from thread to thread.
class StreamFence {
 public:
  // Adds this thread's current stream for `device`.
  void add_current(const at::Device& device);
  // Adds the streams of another fence.
  void add_streams_of(const StreamFence& other);
  // Sets the point: the work that the added streams have queued until now.
  void record();
  // Makes this thread's current stream for each of the devices wait for the point. The CPU does not wait. Does nothing
  // before record().
  void wait() const;
  // Returns when the devices have reached the point. Throws the error of a device that failed.
  void wait_on_host() const;
  // Whether the devices have reached the point. True before record(). Throws the error of a device that failed.
  bool ended() const;

 private:
  void add(const c10::Stream& stream);

  std::vector<c10::Stream> streams_;  // each once
  std::vector<c10::Event> events_;    // one for each stream
};

// The streams of one thread: one for each device, made when it is first needed.
class OwnStreams {
 public:
  // Returns the stream for `device`, which is not the CPU.
  c10::Stream on(const at::Device& device);

 private:
  std::vector<c10::Stream> streams_;
};

// Tells the allocator of the tensor's device that the current stream uses the tensor, so that the allocator does not
// give the memory to others before the stream has ended that use. Does nothing for undefined tensors and tensors on the
// CPU.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace gradwire::internal
