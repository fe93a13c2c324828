// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/hybrid/hosts_of.h"

#include "gradwire/process_group/changing_ranks.h"

namespace gradwire {

std::shared_ptr<const HybridGroup> hosts_of(const ProcessGroup& group) {
  if (const auto* const changing = dynamic_cast<const ChangingRanks*>(&group))
    return std::dynamic_pointer_cast<const HybridGroup>(changing->current());
  return {std::shared_ptr<void>(), dynamic_cast<const HybridGroup*>(&group)};
}

}  // namespace gradwire
