// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Node 0's view of an attempt: whose ranks have ended and how, and who is silent.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/meeting.h"
#include "launch/node_records.h"

namespace gradwire::launch {

class AttemptEnds {
 public:
  // All outlive it. `silence` is how long a node may not be heard of.
  AttemptEnds(Meeting& meeting, const Plan& plan, int round, Milliseconds silence);

  // Reads what the nodes have written. Writes the end of those that were silent for too long. Throws as Meeting does.
  void look();
  // Once all ends are known.
  std::optional<Verdict> verdict() const;
  // The nodes that vanished.
  const std::vector<int>& gone() const noexcept { return gone_; }

 private:
  void look_at(int node, std::int64_t beat);

  Meeting& meeting_;
  const Plan& plan_;
  const int round_;
  const Milliseconds silence_;
  std::vector<std::int64_t> beats_;
  std::vector<Deadline::Clock::time_point> heard_;
  std::vector<std::optional<NodeEnd>> ends_;
  std::vector<int> gone_;
};

}  // namespace gradwire::launch
