// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Work of sends and receives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// One message: the tensor of the caller, and memory in order where the tensor's own is not.
struct Message {
  at::Tensor tensor;
  at::Tensor memory;  // the same tensor where it is contiguous
  std::shared_ptr<Request> request;
};

class CompletionWatcher;

// Messages under way. wait() waits for the messages themselves, so it returns whatever else is going on; the future
// completes by the watcher's thread, or by whoever waits. Ends with the first error in the order of the messages, or
// MismatchError when a receive was shorter than its tensor.
class PointToPointWork final : public Work, public std::enable_shared_from_this<PointToPointWork> {
 public:
  // `what` is "rank 0 of group 'default' (shm): recv"; `channel` is kept until the end, `owner` (the group) as long as
  // this.
  PointToPointWork(std::string what, bool receives, std::vector<Message> messages, Deadline deadline,
                   std::shared_ptr<Channel> channel, std::shared_ptr<CompletionWatcher> watcher,
                   std::shared_ptr<void> owner);
  ~PointToPointWork() override;

  bool wait(Milliseconds timeout) override;
  Future future() override;
  bool is_completed() override;
  bool is_success() override;
  std::exception_ptr exception() override;
  std::vector<at::Tensor> result() override;
  int source_rank() const override;

 private:
  friend class CompletionWatcher;

  // What is under way; shared with the watcher, which brings it to its end when the Work is dropped before.
  struct State;
  std::shared_ptr<void> owner_;  // goes last: its end stops the watcher
  std::shared_ptr<CompletionWatcher> watcher_;
  std::shared_ptr<State> state_;
};

// Brings to their end the messages whose Work has a future that someone may wait for, or that nobody holds any more.
// One thread, started with the first of them. A Request tells only when asked, so the thread asks all of them, at first
// often, then every 2 ms. Thread-safe.
class CompletionWatcher {
 public:
  CompletionWatcher();
  // In a forked child it lets everything be.
  ~CompletionWatcher();
  CompletionWatcher(const CompletionWatcher&) = delete;
  CompletionWatcher& operator=(const CompletionWatcher&) = delete;

  // Takes nothing more, and ends the thread: with `drain` when all that it watches has ended, else at once; then
  // futures of what has not ended fail with AbortedError and `reason`, and what nobody holds is cancelled.
  void stop(bool drain, const std::string& reason);

 private:
  friend class PointToPointWork;
  struct Shared;
  static void watch(Shared& shared);
  void add(std::shared_ptr<PointToPointWork::State> state);

  const OwnerProcess owner_;
  std::shared_ptr<Shared> shared_;
  Mutex thread_mutex_;
  Thread thread_ GRADWIRE_GUARDED_BY(thread_mutex_);
};

}  // namespace gradwire::internal
