// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A Work: a collective, send or receive that was started.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire {

// libtorch's own future type, so that then-callbacks and Python's torch.futures.Future work. The future of a collective
// holds the list of its output tensors (all_gather and gather of several inputs: a list of lists); the future of a hook
// holds one tensor.
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

// The collective, send or receive that a call on a ProcessGroup started. Users may derive from this class: the default
// of every method needs only future(), so a class that overrides future() alone is complete. A class that overrides
// wait() alone can be waited for.
//
// Ownership: a Work keeps alive whatever it needs (tensors, group). The caller may drop the Work before the work has
// ended; the work goes on. Threads: all methods may be called from any thread, any number of times.
class Work {
 public:
  static constexpr Milliseconds kNoTimeout{0};  // wait() waits for the call's own deadline

  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Blocks until the work has ended; returns true. A `timeout` of 0 means the timeout that the call was made with.
  // Throws the error of the work; TimeoutError, which names the call, when `timeout` passes first (the work goes on
  // then); AbortedError when interrupted. On CUDA tensors, the current stream waits, and `timeout` has no effect.
  // Default: waits for future().
  virtual bool wait(Milliseconds timeout = kNoTimeout);

  // Returns the future that ends with this work. The future is shared: all calls return the same one. Never blocks.
  // Default: throws UnsupportedError.
  virtual Future future();

  // Returns whether the work has ended, well or with an error. Never blocks; throws UnsupportedError where the class
  // has no future(). Default: asks future().
  virtual bool is_completed();

  // Returns whether the work has ended without an error. As is_completed() otherwise.
  virtual bool is_success();

  // Returns the error with which the work ended; null when it has not ended or ended well. As is_completed() otherwise.
  virtual std::exception_ptr exception();

  // Returns the output tensors, which the caller shares with the work. Throws the error of the work; InvalidArgument
  // when the work has not ended; UnsupportedError when the future holds something other than tensors. Never blocks.
  // Default: asks future().
  virtual std::vector<at::Tensor> result();

  // Makes the current CUDA stream wait until the work has ended. The CPU does not wait, and this object may be dropped
  // before the stream goes on. In a build without CUDA, or without a current CUDA stream, the CPU waits, and the method
  // throws, as in wait().
  virtual void block_current_stream();

  // Returns the rank that sent a received message. Throws UnsupportedError for everything that is not a receive.
  virtual int source_rank() const;
};

// Returns a Work that ends as `future` ends, which may be later. Throws InvalidArgument when `future` is null.
std::shared_ptr<Work> work_from_future(Future future);

// Returns a Work that has ended well. Its future holds `outputs`.
std::shared_ptr<Work> completed_work(std::vector<at::Tensor> outputs);

// Returns a Work that has ended with `error`. Throws InvalidArgument when `error` is null.
std::shared_ptr<Work> failed_work(std::exception_ptr error);

// Returns a future that holds `tensor` already: the result of a hook that has nothing left to wait for.
Future completed_future(at::Tensor tensor);

}  // namespace gradwire
