// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The backward pass through an output of forward(), within which re-entrant passes (checkpoints) run.
#pragma once

#include <utility>

namespace gradwire::internal {

// An iteration may end in a re-entrant pass, when that pass brought the last gradient. More gradients within the same
// outer pass are then second ones, and no part of another iteration. Not thread-safe: the Reducer's lock guards the
// object.
class OuterPass final {
 public:
  // `pass` (current_backward_pass()) goes through an output. Returns whether the pass is another one than before.
  bool enter(int pass) {
    if (std::exchange(running_, pass) == pass) return false;
    ended_inside_ = false;
    return true;
  }
  // `pass` has ended.
  void leave(int pass) {
    if (running_ == pass) running_ = kNone;
  }
  // The iteration ended within `pass`.
  void end_iteration_in(int pass) { ended_inside_ = running_ != kNone && pass != running_; }
  // Whether a gradient that comes now is a second one of the iteration that has ended.
  bool has_ended_iteration() const noexcept { return ended_inside_ && running_ != kNone; }

 private:
  static constexpr int kNone = -1;
  int running_ = kNone;
  bool ended_inside_ = false;
};

}  // namespace gradwire::internal
