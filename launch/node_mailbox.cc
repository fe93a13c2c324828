// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_mailbox.h"

#include <utility>

#include "launch/launch_error.h"

namespace gradwire::launch {

std::optional<NodeEvent> NodeMailbox::next() {
  MutexLock lock(mutex_);
  if (events_.empty()) return std::nullopt;
  NodeEvent event = std::move(events_.front());
  events_.pop_front();
  if (events_.empty()) events_ready_.clear();
  return event;
}

void NodeMailbox::rank_failed() {
  MutexLock lock(mutex_);
  orders_.rank_failed = true;
}

void NodeMailbox::interrupted() {
  MutexLock lock(mutex_);
  orders_.interrupted = true;
}

void NodeMailbox::ranks_ended(const NodeEnd& end) {
  MutexLock lock(mutex_);
  orders_.own_end = end;
  changed_.notify_all();
}

void NodeMailbox::leave(const NodeEnd& why) {
  MutexLock lock(mutex_);
  orders_.leaving = why;
  changed_.notify_all();
}

void NodeMailbox::stop() {
  MutexLock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

NodeMailbox::Orders NodeMailbox::orders() {
  MutexLock lock(mutex_);
  if (stop_) throw Stopped();
  return orders_;
}

NodeMailbox::Orders NodeMailbox::wait_for_own_end() {
  MutexLock lock(mutex_);
  while (!stop_ && !orders_.own_end) changed_.wait(lock);
  if (stop_) throw Stopped();
  return orders_;
}

void NodeMailbox::publish(NodeEvent event) {
  MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  events_ready_.raise();
}

void NodeMailbox::begin_attempt() {
  alarm_.clear();
  MutexLock lock(mutex_);
  orders_.rank_failed = false;
  orders_.own_end.reset();
}

void NodeMailbox::set_in_attempt(bool in_attempt) {
  MutexLock lock(mutex_);
  in_attempt_ = in_attempt;
}

void NodeMailbox::check() { pause(Milliseconds::zero()); }

void NodeMailbox::pause(Milliseconds time) {
  const Deadline end = Deadline::after(time);
  MutexLock lock(mutex_);
  while (!is_called_away() && !end.expired()) changed_.wait_until(lock, end.point());
  if (stop_) throw Stopped();
  if (is_called_away()) throw LaunchError(orders_.leaving->exit_code, orders_.leaving->what);
}

}  // namespace gradwire::launch
