// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which ranks of a job are slower than the others. What counts is a rank's own time of a step: the time of the step
// without the time in which the rank waits for others. The exchange of gradients makes whole steps equally long.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire {

// When a rank is slow: in so many steps in a row, its own time is longer than `factor` times the median of the other
// ranks' own times, and longer than the median by `least` or more. Of an even number of times, the median is the larger
// of the two in the middle, so a rank among few that are fast is not slow when half of the others are as slow.
struct SlowRule {
  double factor = 3;       // more than 1
  int steps = 20;          // at least 1
  Milliseconds least{10};  // differences below are nobody's trouble, whatever the factor
  bool drop = false;       // a slow rank leaves the job, as long as enough others are left
  bool operator==(const SlowRule&) const = default;
};

namespace membership {

// Throws InvalidArgument, in one sentence, for a factor of 1 or less or that is not finite, and for fewer steps than 1.
void require_valid(const SlowRule& rule);

// A rule as text without tabs and line ends, and back. slow_rule_of() throws StoreError for any other text.
std::string to_text(const SlowRule& rule);
SlowRule slow_rule_of(const std::string& text);

// A rank that is slow. Times are means over the SlowRule::steps steps up to `step`, in microseconds.
struct SlowRank {
  int rank = 0;
  std::int64_t step = 0;       // the last of the steps
  std::int64_t own_us = 0;     // the rank's own time
  std::int64_t others_us = 0;  // the median of the others' own times
  bool operator==(const SlowRank&) const = default;
};

// Finds slow ranks by the times that it is given: no clock, no group. Objects that are given the same times find the
// same ranks. A value type; not thread-safe.
class SlowRanks final {
 public:
  // `size`: how many ranks there are, at least 1. Throws what require_valid() throws.
  SlowRanks(const SlowRule& rule, int size);

  // `own_us`: the own times of all ranks in `step`, by rank. Returns the ranks that have become slow with this step: a
  // rank is returned again only when a step in which it was not slow lies between.
  std::vector<SlowRank> add(std::int64_t step, std::span<const std::int64_t> own_us);

 private:
  struct Run {
    int steps = 0;  // in a row, up to the last one
    std::int64_t own_us = 0;
    std::int64_t others_us = 0;
  };

  SlowRule rule_;
  std::vector<Run> runs_;  // by rank
};

}  // namespace membership
}  // namespace gradwire
