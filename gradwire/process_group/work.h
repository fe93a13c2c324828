// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A collective under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire {

// libtorch's own future, so that then-callbacks and Python's torch.futures.Future fit. A collective's future holds the
// list of its output tensors (all_gather, gather of several inputs: a list of lists); a hook's future holds one tensor.
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

// What a collective returns. A base class: users derive from it. The defaults of every method need nothing but
// future(), so that deriving and overriding future() (or wait()) alone gives a usable Work.
//
// Thread-safe. A Work keeps alive what it needs (tensors, group); it may be dropped before it ends, and waited for
// several times, from several threads.
class Work {
 public:
  static constexpr Milliseconds kNoTimeout{0};

  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Waits for the end; true. `timeout` 0 means: the timeout the call was made with. Throws the error of the collective,
  // TimeoutError when `timeout` passes first (the collective goes on). On CUDA tensors the current stream waits, not
  // the CPU. Default: waits for future().
  virtual bool wait(Milliseconds timeout = kNoTimeout);

  // Default: throws UnsupportedError.
  virtual Future future();

  // Defaults ask future(), if there is one.
  virtual bool is_completed();
  virtual bool is_success();                 // completed, and without error
  virtual std::exception_ptr exception();    // null unless completed with an error
  virtual std::vector<at::Tensor> result();  // the output tensors; throws the error, or if it is not complete

  // Makes the current CUDA stream wait until the work is done, without blocking the CPU. The control memory outlives
  // this object. On a build without CUDA, or when no CUDA stream is current, it waits on the CPU.
  virtual void block_current_stream();

  // Who a receive came from; throws UnsupportedError for anything else.
  virtual int source_rank() const;
};

// A Work whose every answer comes from `future` (which may complete later).
std::shared_ptr<Work> work_from_future(Future future);

// A Work that has ended well, and its future.
std::shared_ptr<Work> completed_work(std::vector<at::Tensor> outputs);

// A Work that has ended with an error.
std::shared_ptr<Work> failed_work(std::exception_ptr error);

// A future that holds `tensor` already: what a hook returns that has nothing left to wait for.
Future completed_future(at::Tensor tensor);

}  // namespace gradwire
