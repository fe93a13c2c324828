// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages of one send or receive while they are under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// One message: the tensor of the caller, and memory in order where the tensor's own is not.
struct Message {
  at::Tensor tensor;
  at::Tensor memory;  // the same tensor where it is contiguous
};
using Messages = c10::SmallVector<Message, 1>;
using Requests = c10::SmallVector<std::shared_ptr<Request>, 1>;  // of messages, in their order

// The times between two looks at requests, which tell nobody when they end: short at first, then up to 2 ms.
class RequestPause {
 public:
  std::chrono::microseconds next() noexcept { return std::exchange(pause_, std::min(pause_ * 2, kLongest)); }

 private:
  static constexpr std::chrono::microseconds kLongest{2000};
  std::chrono::microseconds pause_{50};
};

// Shared by the Work of a call and the watcher, which ends the messages when the Work is destroyed first. Thread-safe.
class MessageState {
 public:
  // `requests`: one a message. They and `channel` are kept until the messages have ended.
  MessageState(const CallLabel& label, std::weak_ptr<const ProcessGroup> group, bool receives, Messages messages,
               Requests requests, Deadline deadline, std::shared_ptr<Channel> channel);

  // "rank 0 of group 'default' (shm): recv"; as the label says where the group has gone.
  std::string what() const;
  bool receives() const noexcept { return receives_; }

  // Whether finish() would end the messages without waiting.
  bool ready();
  // Waits until ready() or `until`, and returns whether the messages are ready. Throws AbortedError when this thread is
  // interrupted.
  bool wait_ready(Deadline until);
  // Waits for the messages, until their deadline, and ends them.
  void finish();
  // Ends the messages that have not ended, with `problem`. `source`: the rank that the last one came from; -1: unknown.
  void end(std::exception_ptr problem, int source);

  // Notes that the watcher gets the messages. Returns whether it has to: they have not ended, and it has not got them.
  bool begin_watch();
  // The future, and whether the watcher has to get the messages for it: the future is new, and they have not ended.
  std::pair<Future, bool> future();

  std::exception_ptr error() const;
  std::optional<int> source() const;  // none while the messages are under way
  std::vector<at::Tensor> tensors() const;

 private:
  // "recv (group default)": the engine that moves the messages does not know the group.
  std::string name() const;
  Requests under_way();  // none when the messages have ended
  std::exception_ptr copy_out() const;

  const CallLabel label_;
  const std::weak_ptr<const ProcessGroup> group_;
  const bool receives_;
  const Deadline deadline_;
  const Messages messages_;

  // Set last by the thread that ends the messages. `error_` and `source_` stay as they are then, and any thread may
  // read them.
  std::atomic<bool> ended_{false};
  std::exception_ptr error_;
  int source_ = -1;

  Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<Channel> channel_ GRADWIRE_GUARDED_BY(mutex_);  // outlives the requests
  Requests requests_ GRADWIRE_GUARDED_BY(mutex_);
  bool watched_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Future future_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
