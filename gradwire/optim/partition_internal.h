// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which rank steps which parameter.
#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::internal {

// Gives parameters to ranks, group after group: the largest first, each to the rank that has the fewest elements so far
// (the lowest of several). Equal parameters in their order. No rank gets more than 1/N of all elements plus one
// parameter, and what was given stays where it is when groups are added.
//
// Graham: Bounds on Multiprocessing Timing Anomalies (1969), "longest processing time first".
class GreedyPartition {
 public:
  explicit GreedyPartition(int ranks) : load_(static_cast<std::size_t>(ranks), 0) {}

  // The owners of one more group of parameters with `sizes` elements, in the order of `sizes`.
  std::vector<int> add_group(const std::vector<std::int64_t>& sizes);

  // Elements by rank.
  const std::vector<std::int64_t>& load() const noexcept { return load_; }

 private:
  std::vector<std::int64_t> load_;
};

}  // namespace gradwire::internal
