// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order of the gradients in the buckets: the order in which they become ready.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Each rank learns an order in the first iteration, or loads one. agree() then makes rank 0's order that of all ranks.
// Not thread-safe: the Reducer's lock guards the object.
class BucketOrder final {
 public:
  // `caps`: the caps of the buckets by DDP's options.
  explicit BucketOrder(BucketCaps caps) : caps_(std::move(caps)) {}

  // The order in which gradients became ready in the first iteration. Changes nothing after load().
  void learn(std::span<const std::size_t> parameters);
  // Sets the order. `known`: the names of all parameters, by number. Throws InvalidArgument when `names` is not an
  // order of them. `rank` is for the message.
  void load(const std::vector<std::string>& names, const std::vector<std::string>& known, int rank);
  bool is_loaded() const noexcept { return loaded_; }

  // Makes rank 0's order the order of all ranks. Collective, called once, after learn() or load(). `specs`: all
  // gradients, by number.
  void agree(ProcessGroup& group, std::span<const TensorSpec> specs);
  bool is_agreed() const noexcept { return ordered_ != nullptr; }
  // The numbers of the parameters in this order. After agree() the same on all ranks.
  const std::vector<std::int64_t>& parameters() const noexcept { return parameters_; }

  // After agree(): a function that returns the buckets of this order, with the cap, or with the caps of the options
  // when `cap_bytes` is 0. The function does not need this object.
  std::function<BucketPlan(std::size_t cap_bytes)> planner() const;
  BucketPlan plan(std::size_t cap_bytes = 0) const { return planner()(cap_bytes); }

 private:
  BucketCaps caps_;
  bool loaded_ = false;
  std::vector<std::int64_t> parameters_;
  std::shared_ptr<const std::vector<TensorSpec>> ordered_;  // null before agree()
};

}  // namespace gradwire::internal
