// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/job_course.h"

#include <variant>

namespace gradwire::membership {

void JobCourse::add(const Event& event) {
  if (const auto* began = std::get_if<Began>(&event)) {
    begun_.insert(began->member);
    if (began->step > furthest_step_) {
      furthest_step_ = began->step;
      deaths_in_a_row_ = 0;
    }
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

}  // namespace gradwire::membership
