// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/stall_checks.h"

#include <algorithm>
#include <utility>

namespace gradwire::launch {
namespace {

// For the lines of a job that runs or has been ended, and of a job that has ended by itself.
constexpr Milliseconds kLinesTime{5000};
constexpr Milliseconds kLinesTimeAtEnd{30'000};

}  // namespace

Deadline StallChecks::next() const {
  const bool waits = told_ && flight_ != nullptr && !flight_->may_kill();
  return flight_ == nullptr || waits ? Deadline::never() : flight_->next_check();
}

std::optional<HangAnswer> StallChecks::check() {
  hangs_.reset();
  if (!next().expired() || ranks_.running().empty()) return std::nullopt;
  if (are_stopped_) flight_->forgive();
  FlightWatch::StallFinding found = flight_->check_stall(ranks_.processes(), /*tells=*/!told_);
  if (found.hangs && !are_stopped_)
    hangs_ = std::min<std::chrono::nanoseconds>(*found.hangs, std::chrono::steady_clock::now() - continued_);
  if (found.records) begin(std::move(found.records));
  return are_stopped_ ? std::nullopt : std::move(found.answer);
}

void StallChecks::ranks_were_continued() noexcept {
  if (are_stopped_) continued_ = std::chrono::steady_clock::now();
  if (std::exchange(are_stopped_, false) && flight_ != nullptr) flight_->forgive();
}

void StallChecks::before_end() {
  if (flight_ != nullptr) flight_->look(ranks_.processes());
}

bool StallChecks::before_interruption() {
  std::optional<FlightRecords> found;
  if (flight_ != nullptr) found = flight_->at_interruption(ranks_.processes());
  if (found) remembered_ = std::move(found);
  return remembered_.has_value();
}

bool StallChecks::at_timeout() {
  if (flight_ != nullptr) remembered_ = flight_->at_timeout(ranks_.processes());
  return remembered_.has_value();
}

void StallChecks::diagnose_end(const JobOutcome& outcome,
                               const std::function<std::vector<std::string>(int)>& last_lines) {
  if (flight_ == nullptr) return;
  if (outcome.launcher_was_killed && !remembered_) {
    FlightRecords found = flight_->at_end(outcome, ranks_.processes(), last_lines);
    found.is_told = false;  // for --flight-dir alone: the ranks' ends are this launcher's doing
    begin(std::move(found));
  } else if (!outcome.late.empty() || outcome.interrupted_first) {
    begin(std::exchange(remembered_, std::nullopt));
  } else if (outcome.first_bad) {
    begin(flight_->at_end(outcome, ranks_.processes(), last_lines));
  } else {
    begin(flight_->at_good_end(outcome, ranks_.processes()));
  }
}

void StallChecks::begin(std::optional<FlightRecords> records) {
  if (!records) return;
  const auto time = records->occasion.is_over ? kLinesTimeAtEnd : kLinesTime;
  told_.emplace(*std::move(records), Deadline::after(time));
}

void StallChecks::look_up() {
  if (is_looking_up()) told_->lines.go_on();
}

std::string StallChecks::take_text() {
  if (!told_) return "";
  told_->records.tables = std::move(told_->lines).take();
  const std::string text = flight_->tell(told_->records);
  told_.reset();
  return text;
}

}  // namespace gradwire::launch
