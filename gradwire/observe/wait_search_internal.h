// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows the waits from rank to rank, to the ranks that the others wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/observe/group_view_internal.h"

namespace gradwire::observe {

// Whether by `time` one of the rank's calls had failed because of another rank, and no later call had gone well. In an
// elastic job a rank goes on after such a failure; what happens to the rank from then on has another cause.
bool failed_by_another(const RankTable& rank, std::int64_t time);
// The rank failed because another did.
bool is_victim(const RankTable& rank);

// Begins with `start`, and ends with the ranks that wait for no rank, or with a ring of ranks that wait for each other.
Diagnosis follow_waits(const std::vector<GroupView>& groups, const Waiting& start);

}  // namespace gradwire::observe
