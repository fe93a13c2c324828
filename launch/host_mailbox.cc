// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/host_mailbox.h"

#include <utility>

namespace gradwire::launch {

bool HostMailbox::answers() {
  MutexLock lock(mutex_);
  const std::int64_t question = ++asked_;
  changed_.notify_all();
  while (answered_ < question && !is_over()) changed_.wait(lock);
  return reason_.empty() && talked_well_;
}

std::optional<membership::Epoch> HostMailbox::epoch(std::int64_t number) {
  const MutexLock lock(mutex_);
  if (known_epoch_ && known_epoch_->number == number) return known_epoch_;
  wanted_epoch_ = number;
  return std::nullopt;
}

membership::JobCourse HostMailbox::course() {
  const MutexLock lock(mutex_);
  return course_;
}

void HostMailbox::on_death() {
  const MutexLock lock(mutex_);
  has_death_ = true;
  changed_.notify_all();
}

void HostMailbox::gives_up() {
  const MutexLock lock(mutex_);
  gives_up_ = true;
}

void HostMailbox::stop() {
  const MutexLock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

std::string HostMailbox::reason() {
  const MutexLock lock(mutex_);
  return reason_;
}

bool HostMailbox::has_given_up() {
  const MutexLock lock(mutex_);
  return gives_up_;
}

std::optional<HostMailbox::Orders> HostMailbox::take_orders() {
  const MutexLock lock(mutex_);
  if (is_over()) return std::nullopt;
  return Orders{.asks = asked_ > answered_,
                .has_death = std::exchange(has_death_, false),
                .gives_up = gives_up_,
                .wanted_epoch = wanted_epoch_,
                .questions = asked_};
}

void HostMailbox::report(const Orders& orders, Findings findings) {
  const MutexLock lock(mutex_);
  course_ = std::move(findings.course);
  if (findings.epoch) {
    if (wanted_epoch_ == orders.wanted_epoch) wanted_epoch_ = 0;
    known_epoch_ = std::move(findings.epoch);
  }
  if (findings.has_talked) {
    answered_ = orders.questions;
    talked_well_ = !findings.has_failed;
  }
  if (orders.has_death && findings.has_failed) has_death_ = true;
  if (!findings.reason.empty()) reason_ = std::move(findings.reason);
  changed_.notify_all();
}

void HostMailbox::wait(const Orders& orders, Milliseconds time) {
  MutexLock lock(mutex_);
  // Deaths that the round before has not found are no news.
  const bool has_news = asked_ != orders.questions || (has_death_ && !orders.has_death);
  if (!is_over() && !has_news) changed_.wait_for(lock, time);
}

}  // namespace gradwire::launch
