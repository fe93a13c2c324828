// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/iteration_internal.h"

#include <algorithm>
#include <utility>

namespace gradwire::internal {

void Iteration::reset(const BucketPlan& plan) {
  expected_ = false;
  pass_begun_ = false;
  joined_ = false;
  pass_ = -1;
  next_bucket_ = 0;
  order_.clear();
  pending_.clear();
  std::size_t parameters = 0;
  for (const std::vector<std::size_t>& bucket : plan) {
    pending_.push_back(bucket.size());
    parameters += bucket.size();
  }
  ready_.assign(parameters, false);
}

void Iteration::expect_as_joined() {
  expected_ = true;
  joined_ = true;
}

bool Iteration::begin_pass() {
  if (std::exchange(pass_begun_, true)) return false;
  backward_ = Clock::now();
  if (pending_.empty()) first_launch_ = last_gradient_ = backward_;
  return true;
}

bool Iteration::enter_pass(int pass) { return std::exchange(pass_, pass) != pass; }

bool Iteration::take(std::size_t parameter, std::size_t bucket) {
  if (ready_[parameter]) return false;
  ready_[parameter] = true;
  order_.push_back(parameter);
  --pending_[bucket];
  return true;
}

std::optional<std::size_t> Iteration::next_complete_bucket() {
  if (all_launched() || pending_[next_bucket_] > 0) return std::nullopt;
  if (next_bucket_ == 0) first_launch_ = Clock::now();
  const std::size_t bucket = next_bucket_++;
  if (all_launched()) last_gradient_ = Clock::now();
  return bucket;
}

bool Iteration::under_way() const { return expected_ && !order_.empty(); }

std::vector<std::size_t> Iteration::missing() const {
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) parameters.push_back(i);
  }
  return parameters;
}

DdpTimes Iteration::times(const std::optional<Clock::time_point>& end) const {
  DdpTimes times;
  times.forward_compute = backward_ - forward_;
  times.backward_compute = last_gradient_ - backward_;
  if (!end) return times;
  const Clock::time_point last = std::max(*end, first_launch_);
  times.backward_comm = last - first_launch_;
  times.backward_compute_comm_overlap = std::min(last, last_gradient_) - first_launch_;
  return times;
}

}  // namespace gradwire::internal
