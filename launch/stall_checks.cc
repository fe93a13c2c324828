// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/stall_checks.h"

namespace gradwire::launch {

std::string StallChecks::check() {
  if (!next().expired() || ranks_.running().empty()) return "";
  return flight_->check_stall(ranks_.pids());
}

void StallChecks::before_end() {
  if (flight_ != nullptr) flight_->look(ranks_.pids());
}

void StallChecks::before_interruption() {
  if (flight_ != nullptr) flight_->at_interruption(ranks_.pids());
}

void StallChecks::diagnose_timeout(JobOutcome& outcome) {
  if (flight_ != nullptr) outcome.diagnosis = flight_->at_timeout(ranks_.pids());
}

void StallChecks::diagnose_end(JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines) {
  if (flight_ == nullptr || !outcome.late.empty()) return;
  if (outcome.interrupted_by != 0) {
    outcome.diagnosis = flight_->after_interruption();
  } else if (outcome.first_bad) {
    outcome.diagnosis = flight_->at_end(outcome, last_lines);
  } else {
    flight_->at_good_end(outcome);
  }
}

}  // namespace gradwire::launch
