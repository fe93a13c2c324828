// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the hook "auto" has decided, and how it tells of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/ddp/reduction_shape.h"
#include "gradwire/hooks/auto_hook.h"
#include "gradwire/hooks/choice_race_internal.h"

namespace gradwire::internal {

// The decisions so far, oldest first. Not thread-safe.
class ChoiceLog {
 public:
  // `hooks`: the names of the hooks of the race.
  explicit ChoiceLog(std::vector<std::string> hooks);

  // The hooks of `race` have settled, or its shapes have: the choice counts from `first_iteration` on. Traces it, and
  // logs it on rank 0. `shapes`: those of the race; empty while they are not known.
  void note_choice(const ChoiceRace& race, const std::vector<ReductionShape>& shapes, std::uint32_t first_iteration,
                   int rank);

  const std::vector<HookChoice>& choices() const noexcept { return choices_; }

 private:
  const std::vector<std::string> hooks_;
  std::vector<HookChoice> choices_;
};

// Traces the cost of a choice of `hook` and `shape` in `iteration`, before `race` gets it.
void trace_measured(const ChoiceRace& race, const std::string& hook, const ReductionShape& shape,
                    const LoopTime& agreed, int rank, std::uint32_t iteration);

}  // namespace gradwire::internal
