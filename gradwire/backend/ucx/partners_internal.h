// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which ranks stay connected for as long as the group lives.
#pragma once

#include <vector>

#include "gradwire/backend/generic/generic_channel.h"

namespace gradwire::ucx {

// Up to this many ranks all are partners of all: that is simpler, and the connections are few.
inline constexpr int kFullMeshRanks = GenericChannel::kDirectRanks;

// The partners of `rank`, in rank order. In a small world all other ranks; else those at a distance of 1, 2, 4, ... in
// both directions around the ring of all ranks, at most 2 log2 `size`. So partners are partners of each other, what
// goes from partner to partner reaches everyone in at most log2 `size` steps, and the steps of GenericChannel's
// algorithms for many ranks go between partners.
inline std::vector<int> partners_of(int rank, int size) {
  std::vector<bool> is_partner(static_cast<std::size_t>(size), size <= kFullMeshRanks);
  for (int distance = 1; distance < size; distance *= 2) {
    is_partner[static_cast<std::size_t>((rank + distance) % size)] = true;
    is_partner[static_cast<std::size_t>((rank + size - distance) % size)] = true;
  }
  is_partner[static_cast<std::size_t>(rank)] = false;
  std::vector<int> partners;
  for (int other = 0; other < size; ++other) {
    if (is_partner[static_cast<std::size_t>(other)]) partners.push_back(other);
  }
  return partners;
}

}  // namespace gradwire::ucx
