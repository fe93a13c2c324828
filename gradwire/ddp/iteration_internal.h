// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of one iteration: which gradients are there, and which bucket is the next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/logging_data.h"

namespace gradwire::internal {

// reset() -> expect() -> begin_pass() -> take() a parameter, next_complete_bucket() a bucket -> end(). Not thread-safe:
// the Reducer's lock guards it.
class Iteration final {
 public:
  using Clock = std::chrono::steady_clock;

  // Nothing has come yet, of any gradient in `plan`. The number stays.
  void reset(const BucketPlan& plan);
  // The iteration has ended; the next number.
  void end() { ++number_; }
  // Counts the iterations that have ended.
  std::uint32_t number() const noexcept { return number_; }

  // A backward pass that is to be synchronized comes, or has begun.
  void expect() { expected_ = true; }
  bool expected() const noexcept { return expected_; }
  // Another rank's: this one has joined, and takes part with zeros.
  void expect_as_joined();
  bool joined() const noexcept { return joined_; }
  // True the first time.
  bool begin_pass();
  // True when `pass` is not the one that the last call named.
  bool enter_pass(int pass);

  // The gradient of `parameter`, which is in `bucket`, is there. False when it was already.
  bool take(std::size_t parameter, std::size_t bucket);
  // The next bucket in order, if all its gradients are there; each once.
  std::optional<std::size_t> next_complete_bucket();
  bool all_launched() const noexcept { return next_bucket_ == pending_.size(); }
  bool any_launched() const noexcept { return next_bucket_ > 0; }
  // Some gradients are there, and the iteration has not ended.
  bool under_way() const;
  std::vector<std::size_t> missing() const;
  // The parameters in the order in which take() was called.
  const std::vector<std::size_t>& order() const noexcept { return order_; }

  void mark_forward() { forward_ = Clock::now(); }
  // What took how long; `end`: of the last reduction, not given where nothing was communicated.
  DdpTimes times(const std::optional<Clock::time_point>& end) const;
  Clock::time_point first_launch() const noexcept { return first_launch_; }

 private:
  std::uint32_t number_ = 0;
  bool expected_ = false;
  bool pass_begun_ = false;
  bool joined_ = false;
  int pass_ = -1;
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> pending_;  // gradients that each bucket still waits for
  std::vector<bool> ready_;           // by parameter
  std::vector<std::size_t> order_;
  Clock::time_point forward_, backward_, first_launch_, last_gradient_;
};

}  // namespace gradwire::internal
