// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/first_rank_memory.h"

#include "gradwire/process_group/hybrid/hosts_of.h"

namespace gradwire {

bool has_memory(const CommHook& hook, const ProcessGroup& group) {
  if (!memory_lies_with_first_ranks(hook)) return true;
  const auto& own = hook.traits().groups;
  const auto hosts = hosts_of(own.empty() ? group : *own.front());
  return hosts == nullptr || hosts->is_leader();
}

}  // namespace gradwire
