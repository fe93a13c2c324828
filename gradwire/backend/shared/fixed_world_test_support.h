// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A World for tests of what lies below the channels.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// Ranks whose processes the test names, and that never go. Shares no memory: the test brings its own.
class FixedWorld final : public World {
 public:
  FixedWorld(int rank, std::vector<int> processes)
      : World(rank, static_cast<int>(processes.size())), processes_(std::move(processes)) {}
  bool shares_all_memory() const noexcept override { return false; }
  Region share_region(std::uint64_t, std::size_t, Deadline, const std::function<void()>&) override { return {}; }
  bool is_gone(int) const noexcept override { return false; }
  int process_of(int peer) const noexcept override { return processes_[static_cast<std::size_t>(peer)]; }
  std::string describe_peer(int) const override { return "a process"; }

 private:
  std::vector<int> processes_;
};

}  // namespace gradwire::shared
