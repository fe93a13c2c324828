// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Work of sends and receives.
#pragma once

#include <memory>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/process_group/completion_watcher_internal.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/message_state_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Messages under way. wait() waits for the messages themselves, so it does not depend on other calls. The future is
// completed by the watcher's thread, or by a thread that waits. The Work ends with the first error in the order of the
// messages, or with MismatchError when a message was shorter than its tensor.
class PointToPointWork final : public LabelledWork {
 public:
  // `requests` and `channel` are kept until the messages have ended, `group` as long as this object.
  PointToPointWork(bool receives, Messages messages, Requests requests, Deadline deadline,
                   std::shared_ptr<Channel> channel, std::shared_ptr<CompletionWatcher> watcher,
                   std::shared_ptr<const ProcessGroup> group);
  ~PointToPointWork() override;

  bool wait(Milliseconds timeout) override;
  Future future() override;
  bool is_completed() override;
  bool is_success() override;
  std::exception_ptr exception() override;
  std::vector<at::Tensor> result() override;
  int source_rank() const override;

 private:
  std::shared_ptr<const ProcessGroup> owner_;  // goes last: its end stops the watcher
  std::shared_ptr<CompletionWatcher> watcher_;
  std::shared_ptr<MessageState> state_;
};

}  // namespace gradwire::internal
