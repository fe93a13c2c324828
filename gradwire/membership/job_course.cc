// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/job_course.h"

#include <variant>

namespace gradwire::membership {

void JobCourse::add(const Event& event) {
  if (const auto* began = std::get_if<Began>(&event)) {
    begun_.insert(began->member);
    come_to(began->step);
  } else if (const auto* reached = std::get_if<Reached>(&event)) {
    come_to(reached->step);
  } else if (const auto* died = std::get_if<Died>(&event)) {
    if (begun_.erase(died->member) != 0) ++deaths_in_a_row_;
  } else if (const auto* left = std::get_if<Left>(&event)) {
    begun_.erase(left->member);
  } else if (std::holds_alternative<Done>(event)) {
    has_finished_ = true;
  } else if (std::holds_alternative<StateLost>(event)) {
    has_lost_state_ = !has_finished_;
  }
}

void JobCourse::come_to(std::int64_t step) {
  if (step <= furthest_step_) return;
  furthest_step_ = step;
  deaths_in_a_row_ = 0;
}

}  // namespace gradwire::membership
