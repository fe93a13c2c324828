// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/network_payload.h"

#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

std::uint64_t network_payload_bytes(const ProcessGroup& group) noexcept {
  if (const auto* const changing = dynamic_cast<const ChangingRanks*>(&group)) return changing->sent_over_networks();
  const auto* const hosts = dynamic_cast<const HybridGroup*>(&group);
  if (hosts == nullptr) return group.payload_bytes();
  return hosts->cross() == nullptr ? 0 : hosts->cross()->payload_bytes();
}

}  // namespace gradwire
