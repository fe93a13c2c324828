// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which hooks keep their memory on the first rank of each host alone, and on which ranks a hook has a memory.
#pragma once

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// A hook that may run between hosts (gradwire/hooks/between_hosts_hook.h), or that wraps such a hook.
class FirstRankMemory {
 public:
  virtual ~FirstRankMemory() = default;
  // True: over a group of several hosts, only the first rank of each host has the hook's state. Call it between
  // iterations.
  virtual bool memory_lies_with_first_ranks() const = 0;
};

// What `hook` says, and false for a hook that says nothing.
inline bool memory_lies_with_first_ranks(const CommHook& hook) {
  const auto* const says = dynamic_cast<const FirstRankMemory*>(&hook);
  return says != nullptr && says->memory_lies_with_first_ranks();
}

// Whether this rank has what `hook` remembers after an iteration over `group`, or over the group that the hook was made
// with. The memory of a rank without it counts for nothing when memories of ranks are averaged. Call it between
// iterations. Thread-safe for different hooks.
bool has_memory(const CommHook& hook, const ProcessGroup& group);

}  // namespace gradwire
