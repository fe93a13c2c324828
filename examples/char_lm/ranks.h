// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the ranks tell each other beside gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace char_lm {

// The default group: of the ranks a launcher started, or of this process alone when none did. `backend`: a name, or
// "auto". Throws gradwire's errors.
std::shared_ptr<gradwire::ProcessGroup> join_ranks(const std::string& backend);

// How many ranks share this host, as the launcher says; 1 when it says nothing.
int ranks_on_this_host();

// The sum, or the mean, of one number of each rank; the same bits on all ranks. Collective.
double sum_over_ranks(gradwire::ProcessGroup& group, double value);
double mean_over_ranks(gradwire::ProcessGroup& group, double value);

// One number of each rank, by rank. Collective.
std::vector<std::int64_t> gather_over_ranks(gradwire::ProcessGroup& group, std::int64_t value);

// Each rank's bytes, by rank, on rank 0; nothing on the others. Collective.
std::vector<std::string> gather_bytes(gradwire::ProcessGroup& group, const std::string& bytes);

// Runs `action` on rank 0; when it throws there, that error comes out on rank 0 and a std::runtime_error that says so
// on the others, so that no rank waits for what will not happen. Collective.
void on_rank_zero(gradwire::ProcessGroup& group, const std::string& what, const std::function<void()>& action);

}  // namespace char_lm
