// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/job_course.h"

#include <utility>
#include <variant>

#include "gradwire/base/process_identity.h"

namespace gradwire::membership {

void JobCourse::add(std::int64_t number, const Event& event) {
  if (const auto* joined = std::get_if<Joined>(&event)) {
    processes_[number] = {joined->host, number_of_process(joined->identity)};
  } else if (const auto* began = std::get_if<Began>(&event)) {
    begun_.insert(began->member);
    if (began->epoch > epoch_) {
      // The step with which an epoch begins is the one at which the epoch before was broken.
      const std::int64_t before = std::exchange(epoch_, began->epoch);
      come_to(began->step, std::exchange(of_epoch_, {}), before > 0 ? before : epoch_);
    }
  } else if (const auto* reached = std::get_if<Reached>(&event)) {
    // A member that died in this epoch before its first one could tell so died at this step.
    come_to(reached->step, of_epoch_, epoch_);
  } else if (const auto* died = std::get_if<Died>(&event)) {
    processes_.erase(died->member);
    if (begun_.erase(died->member) == 0 || died->how == kLeftWaiting) return;
    row_.add(*died);
    of_epoch_.add(*died);
  } else if (const auto* left = std::get_if<Left>(&event)) {
    processes_.erase(left->member);
    begun_.erase(left->member);
  } else if (std::holds_alternative<Done>(event)) {
    finish();
  } else if (std::holds_alternative<StateLost>(event)) {
    has_lost_state_ = !has_finished_;
  }
}

// The first member that has counted the last step tells it of all members of its epoch.
void JobCourse::finish() {
  if (std::exchange(has_finished_, true)) return;
  for (const std::int64_t member : begun_) {
    if (const auto process = processes_.find(member); process != processes_.end()) finishers_.insert(process->second);
  }
}

bool JobCourse::has_finished_with(const std::string& host, int process) const {
  return finishers_.contains({host, process});
}

void JobCourse::Deaths::add(const Died& died) {
  if (died.host.empty()) {
    ++alone;
  } else {
    hosts.insert(died.host);
  }
}

void JobCourse::come_to(std::int64_t step, const Deaths& deaths, std::int64_t epoch) {
  if (step <= furthest_step_) return;
  furthest_step_ = step;
  row_ = deaths;
  row_epoch_ = epoch;
}

}  // namespace gradwire::membership
