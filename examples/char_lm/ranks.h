// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Communication between the ranks besides the exchange of gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace char_lm {

// Makes the default group: of the ranks that a launcher started, or of this process alone without a launcher. `backend`
// is a name or "auto". Throws gradwire's errors.
std::shared_ptr<gradwire::ProcessGroup> join_ranks(const std::string& backend);

// Returns the number of ranks on this host, from the launcher's environment; 1 without a launcher.
int ranks_on_this_host();

// Return the sum or the mean of one number of each rank, with the same bits on all ranks. Collective.
double sum_over_ranks(gradwire::ProcessGroup& group, double value);
double mean_over_ranks(gradwire::ProcessGroup& group, double value);

// Returns one number of each rank, by rank. Collective.
std::vector<std::int64_t> gather_over_ranks(gradwire::ProcessGroup& group, std::int64_t value);

}  // namespace char_lm
