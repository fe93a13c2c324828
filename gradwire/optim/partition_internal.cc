// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/partition_internal.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace gradwire::internal {

std::vector<int> GreedyPartition::add_group(const std::vector<std::int64_t>& sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> owners(sizes.size());
  for (const std::size_t index : order) {
    const auto least = std::min_element(load_.begin(), load_.end());
    *least += sizes[index];
    owners[index] = static_cast<int>(least - load_.begin());
  }
  return owners;
}

}  // namespace gradwire::internal
