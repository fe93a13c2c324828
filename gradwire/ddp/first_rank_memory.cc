// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/first_rank_memory.h"

#include <memory>

#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

bool has_memory(const CommHook& hook, const ProcessGroup& group) {
  if (!memory_lies_with_first_ranks(hook)) return true;
  const auto* const changing = dynamic_cast<const ChangingRanks*>(&group);
  const std::shared_ptr<ProcessGroup> current = changing == nullptr ? nullptr : changing->current();
  const auto* const hosts = dynamic_cast<const HybridGroup*>(current == nullptr ? &group : current.get());
  return hosts == nullptr || hosts->is_leader();
}

}  // namespace gradwire
