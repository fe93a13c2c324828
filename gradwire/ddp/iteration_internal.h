// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of one iteration: the gradients that are ready, and the next bucket to launch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/logging_data.h"

namespace gradwire::internal {

// The order of calls: reset() -> expect() -> begin_pass() -> take() for each parameter and next_complete_bucket() for
// each bucket -> end(). Not thread-safe: the Reducer's lock guards the object.
class Iteration final {
 public:
  using Clock = std::chrono::steady_clock;

  // Begins an iteration with the buckets of `plan`, in which no gradient is ready. Does not change the number.
  void reset(const BucketPlan& plan);
  // Ends the iteration: counts its number up.
  void end() { ++number_; }
  // The number of iterations that have ended.
  std::uint32_t number() const noexcept { return number_; }

  // A synchronized backward pass follows, or has begun.
  void expect() { expected_ = true; }
  bool expected() const noexcept { return expected_; }
  // The same for a pass of other ranks: this rank has joined, and takes part with zeros.
  void expect_as_joined();
  bool joined() const noexcept { return joined_; }
  // Returns true at the first call in an iteration.
  bool begin_pass();
  // Returns true when `pass` differs from the pass of the last call.
  bool enter_pass(int pass);

  // The gradient of `parameter`, in `bucket`, is ready. Returns false when the gradient was ready already.
  bool take(std::size_t parameter, std::size_t bucket);
  // Returns the next bucket in the order of launch, if all its gradients are ready. Returns each bucket once.
  std::optional<std::size_t> next_complete_bucket();
  bool all_launched() const noexcept { return next_bucket_ == pending_.size(); }
  bool any_launched() const noexcept { return next_bucket_ > 0; }
  // Whether some gradients are ready, but the iteration has not ended.
  bool under_way() const;
  // The parameters whose gradients are not ready.
  std::vector<std::size_t> missing() const;
  // The parameters in the order in which take() was called.
  const std::vector<std::size_t>& order() const noexcept { return order_; }

  void mark_forward() { forward_ = Clock::now(); }
  // The times of this iteration. `end`: the end of the last reduction; not given when nothing was communicated.
  DdpTimes times(const std::optional<Clock::time_point>& end) const;

 private:
  std::uint32_t number_ = 0;
  bool expected_ = false;
  bool pass_begun_ = false;
  bool joined_ = false;
  int pass_ = -1;
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> pending_;  // by bucket: the number of gradients that are not ready
  std::vector<bool> ready_;           // by parameter
  std::vector<std::size_t> order_;
  Clock::time_point forward_, backward_, first_launch_, last_gradient_;
};

}  // namespace gradwire::internal
