// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the members of a new epoch come to hold the same state.
#pragma once

#include <cstdint>
#include <string>

#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The position of a member that holds no state of the job.
inline constexpr std::int64_t kNoState = -1;

// Collective over `group`, at the beginning of an epoch. `counted` is the number of steps that this member has counted,
// or kNoState. The members with the highest number hold the state of the job. The first of them gives it to all members
// with another number: parameters and buffers, optimizers, the hooks' shared parts, the user's states. Sharded states
// are dealt anew (shard_exchange_internal.h). All members then average the local parts of the hooks of the members that
// held the state, and know the order of the buckets. When no member holds state and `fresh` is true (no step has
// begun), the state of rank 0 is that of the job.
//
// `holds_memory`: whether the state of this member's hooks is that of the job. Members for which it is not get the
// shared parts too, and their local parts do not count. When it is so for no member that holds the state, the hooks go
// on with the shared parts of the first, and without local parts.
//
// Returns the number of counted steps, the same on all members; kNoState when no member holds state and `fresh` is
// false. A member that throws an error of the group is in the state in which it was. Throws MismatchError when members
// with the highest number hold other bits than the first; InternalError when the state arrived with other bits; and
// what the group throws.
std::int64_t exchange_state(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh,
                            bool holds_memory = true);

}  // namespace gradwire::internal
