// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Work of sends and receives.
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// One message: the tensor of the caller, and memory in order where the tensor's own is not.
struct Message {
  at::Tensor tensor;
  at::Tensor memory;  // the same tensor where it is contiguous
  std::shared_ptr<Request> request;
};
using Messages = c10::SmallVector<Message, 1>;

class CompletionWatcher;

// Messages under way. wait() waits for the messages themselves, so it does not depend on other calls. The future is
// completed by the watcher's thread, or by a thread that waits. The Work ends with the first error in the order of the
// messages, or with MismatchError when a message was shorter than its tensor.
class PointToPointWork final : public LabelledWork, public std::enable_shared_from_this<PointToPointWork> {
 public:
  // `channel` is kept until the messages have ended, `group` as long as this object.
  PointToPointWork(bool receives, Messages messages, Deadline deadline, std::shared_ptr<Channel> channel,
                   std::shared_ptr<CompletionWatcher> watcher, std::shared_ptr<const ProcessGroup> group);
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

  // The messages under way. Shared with the watcher, which ends them when the Work is destroyed first.
  struct State;
  std::shared_ptr<const ProcessGroup> owner_;  // goes last: its end stops the watcher
  std::shared_ptr<CompletionWatcher> watcher_;
  std::shared_ptr<State> state_;
};

// Ends messages for which perhaps no thread waits: those whose Work was asked for its future, and those whose Work was
// destroyed. One thread, started with the first such message. A Request must be asked whether it has ended, so the
// thread asks all of them, at first often, then every 2 ms. Thread-safe.
class CompletionWatcher {
 public:
  CompletionWatcher();
  // In a forked child the destructor does nothing.
  ~CompletionWatcher();
  CompletionWatcher(const CompletionWatcher&) = delete;
  CompletionWatcher& operator=(const CompletionWatcher&) = delete;

  // Refuses further messages, and ends the thread. With `drain`, the thread first waits until all watched messages have
  // ended, and all sends: another rank waits for these. Without it, futures of messages that have not ended fail with
  // AbortedError and `reason`, and messages whose Work was destroyed are cancelled. Returns whether the calling thread
  // was interrupted (gradwire/base/interrupt.h), and the rest was not waited for.
  bool stop(bool drain, const std::string& reason);

 private:
  friend class PointToPointWork;
  struct Shared;
  static void watch(Shared& shared);
  void note_send(const std::shared_ptr<PointToPointWork::State>& state);
  void add(std::shared_ptr<PointToPointWork::State> state);
  // Watches a message that has not ended and is not watched. Throws ResourceError where no thread can be had.
  void take_over(const std::shared_ptr<PointToPointWork::State>& state);

  const OwnerProcess owner_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace gradwire::internal
