// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the members of a new epoch come to hold the same state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The position of a member that holds no state of the job.
inline constexpr std::int64_t kNoState = -1;

// What the memories of a member's hooks are worth. An exchange of memories counts as a step does: it counts when a step
// has counted after it, because a step needs all members, and so all of them have finished the exchange. Until then, a
// member that took part with a memory of its own gives that memory again in the next exchange, and not the mean.
struct MemoryStanding {
  // The state of the hooks is that of the job. Members for which it is not get it from the others.
  bool holds = true;
  // It came from an exchange that does not count yet, to a member that had none of its own.
  bool is_received = false;
  // The hooks' local parts before an exchange that does not count yet.
  std::optional<std::string> before = std::nullopt;
  // The hooks' local parts of members that have left in good order since the last step: parts of the next exchange, and
  // of those after it until one counts.
  std::vector<std::string> of_leavers = {};

  // A step has counted, so the exchange before it counts.
  void step_has_counted() {
    is_received = false;
    before.reset();
    of_leavers.clear();
  }
};

// Whether the hooks of this member hold local parts that no other member has. Does not communicate.
bool holds_local_memory(const TrainingState& state, const MemoryStanding& memory);

// Collective over `group`, at the boundary at which its epoch stops without a failure. `leaves`: this member takes no
// part in later epochs. The others take over the memories of those that leave, so that the job owes what it owed. A
// member that throws an error of the group may lack some of them, and gets them in the next exchange from another one.
// Returns whether another member stays. When all leave, nobody takes over anything. Throws what the group throws.
bool take_over_from_leavers(ProcessGroup& group, const TrainingState& state, bool leaves, MemoryStanding& memory);

// Collective over `group`, at the beginning of an epoch. `counted` is the number of steps that this member has counted,
// or kNoState. The members with the highest number hold the state of the job. The first of them gives it to all members
// with another number: parameters and buffers, optimizers, the hooks' shared parts, the user's states. Sharded states
// are dealt anew (shard_exchange_internal.h). All members then average the local parts of the hooks of the members that
// held the state, and know the order of the buckets. When no member holds state and `fresh` is true (no step has
// begun), the state of rank 0 is that of the job.
//
// `memory`: that of this member's hooks, before the exchange and after it. Only members with a memory of their own give
// it, besides those that have left in good order; when there is none, those that received one. The others get the
// shared parts too, and their local parts do not count. When no member that holds the state has a memory, the hooks go
// on with the shared parts of the first, and without local parts.
//
// `has_followed` (null: false): this member has its state by following (following_internal.h), and no member has
// confirmed it since. Its state counts when it has the steps and the bits of the members that were in an epoch; else it
// gets theirs. So a newcomer neither ends the job with other bits nor takes the job back to an earlier step. Becomes
// false as soon as the state is confirmed, also where this throws an error of the group afterwards.
//
// Returns the number of counted steps, the same on all members; kNoState when no member holds state and `fresh` is
// false. A member that throws an error of the group is in the state in which it was. Throws MismatchError when members
// with the highest number hold other bits than the first; InternalError when the state arrived with other bits; and
// what the group throws.
std::int64_t exchange_state(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh,
                            MemoryStanding& memory, bool* has_followed = nullptr);

// The same for members that train separately (TrainingState::separate_workers()): those that hold the state keep their
// own parameters. Returns the number of steps that this member has ended, which may differ between members. A member
// that throws an error of the group holds the state that it held.
std::int64_t exchange_separate_state(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh);

}  // namespace gradwire::internal
