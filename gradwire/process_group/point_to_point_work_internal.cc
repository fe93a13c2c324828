// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/point_to_point_work_internal.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {

namespace {

bool all_done(const Requests& requests) {
  return std::all_of(requests.begin(), requests.end(), [](const auto& request) { return request->done(); });
}

}  // namespace

PointToPointWork::PointToPointWork(bool receives, Messages messages, Requests requests, Deadline deadline,
                                   std::shared_ptr<Channel> channel, std::shared_ptr<CompletionWatcher> watcher,
                                   std::shared_ptr<const ProcessGroup> group)
    : owner_(std::move(group)), watcher_(std::move(watcher)) {
  // A small message is sent by now. A receive is asked when somebody waits for it: that may read what has come.
  const bool is_sent = !receives && all_done(requests);
  state_ = std::make_shared<MessageState>(label(), owner_, receives, std::move(messages), std::move(requests), deadline,
                                          std::move(channel));
  if (is_sent) {
    state_->finish();
  } else if (!receives) {
    watcher_->note_send(state_);
  }
}

PointToPointWork::~PointToPointWork() {
  if (!watcher_->owner().is_current()) {
    // Cancelling a request would reach into what belongs to the parent.
    static_cast<void>(std::make_unique<std::shared_ptr<MessageState>>(std::move(state_)).release());
    return;
  }
  try {
    watcher_->take_over(state_);
  } catch (const std::exception& error) {  // no thread: the next message that is watched, or the group's end, is for it
    log::warn(concat(state_->what(), ": nobody watches this message until the group's next one: ", describe(error)));
  }
}

bool PointToPointWork::wait(Milliseconds timeout) {
  const WatchedWait watched(label().flight());
  if (timeout != kNoTimeout && !state_->wait_ready(Deadline::after(timeout))) throw_late(timeout);
  state_->finish();
  if (const std::exception_ptr error = state_->error()) std::rethrow_exception(error);
  return true;
}

Future PointToPointWork::future() {
  auto [future, needs_watcher] = state_->future();
  if (needs_watcher) watcher_->add(state_);
  return std::move(future);
}

bool PointToPointWork::is_completed() {
  if (!state_->ready()) return false;
  state_->finish();  // a message that ended lies in the user's tensor
  return true;
}

bool PointToPointWork::is_success() { return is_completed() && exception() == nullptr; }

std::exception_ptr PointToPointWork::exception() { return is_completed() ? state_->error() : nullptr; }

std::vector<at::Tensor> PointToPointWork::result() {
  if (!state_->ready())
    throw InvalidArgument(concat(state_->what(), ": result(): the message is under way; wait() for it first"));
  wait(kNoTimeout);
  return state_->tensors();
}

int PointToPointWork::source_rank() const {
  if (!state_->receives()) return Work::source_rank();
  if (const std::optional<int> source = state_->source()) return *source;
  throw InvalidArgument(concat(state_->what(), ": source_rank(): the message is under way; wait() for it first"));
}

}  // namespace gradwire::internal
