// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a channel, as peers of the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gradwire::messages {

struct Members {
  int rank = 0;            // this endpoint's
  std::vector<int> peers;  // by rank
  int size() const noexcept { return static_cast<int>(peers.size()); }
  int peer(int of_rank) const noexcept { return peers[static_cast<std::size_t>(of_rank)]; }
  // The rank that is `peer`. Mostly ranks and peers have the same numbers.
  int rank_of(int peer) const noexcept {
    const auto guess = static_cast<std::size_t>(peer);
    if (guess < peers.size() && peers[guess] == peer) return peer;
    return static_cast<int>(std::find(peers.begin(), peers.end(), peer) - peers.begin());
  }
};

}  // namespace gradwire::messages
