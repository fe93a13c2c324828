// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the members of an epoch come to know which of them is slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/membership/slow_ranks.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// A slow rank and the name of its host.
struct SlowRankOnHost {
  membership::SlowRank slow;
  std::string host;
};

// For one epoch. All its ranks make one with the same rule, and all call add() after each step. Not thread-safe.
class SlowWatch final {
 public:
  // Between two exchanges of times: they cost a small all-gather, and a rank that is slow is found so many steps late.
  static constexpr int kStepsPerExchange = 10;

  // Throws what membership::SlowRanks throws.
  SlowWatch(const SlowRule& rule, int size);
  const SlowRule& rule() const noexcept { return rule_; }

  // `own_us`: this rank's own time of `step`, in microseconds. In every kStepsPerExchange-th call, or more often where
  // the rule counts fewer steps, collective over `group`. Returns the ranks that have become slow, the same on all
  // ranks. Throws what the group throws.
  std::vector<SlowRankOnHost> add(ProcessGroup& group, std::int64_t step, std::int64_t own_us);

 private:
  const SlowRule rule_;
  const std::size_t per_exchange_;
  membership::SlowRanks ranks_;
  std::vector<std::int64_t> own_us_;  // of the steps since the last exchange
};

}  // namespace gradwire::internal
