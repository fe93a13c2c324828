// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire::test_support {

// A hybrid group of the ranks of `flat`, as if rank i ran on host `hosts[i]`: "0011" is two hosts of two ranks. A
// collective call.
inline std::shared_ptr<HybridGroup> on_hosts(const std::shared_ptr<ProcessGroup>& flat, const std::string& hosts) {
  return HybridGroup::make(flat->dup(), flat->split(hosts[static_cast<std::size_t>(flat->rank())] - '0'));
}

}  // namespace gradwire::test_support
