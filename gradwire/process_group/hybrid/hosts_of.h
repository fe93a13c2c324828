// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

// Returns the HybridGroup that `group` is, or that the calls on `group` go to now (ChangingRanks); null for all other
// groups. `group` must outlive the pointer, unless it is a ChangingRanks. Thread-safe.
std::shared_ptr<const HybridGroup> hosts_of(const ProcessGroup& group);

}  // namespace gradwire
