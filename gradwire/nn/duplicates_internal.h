// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One duplicate of a group for all layers that communicate over it.
#pragma once

#include <memory>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The duplicate of `group` that somebody holds already, or a new one (collective in the group), or `group` itself where
// it has none. What is remembered are weak pointers: with the last holder the duplicate goes. Thread-safe.
std::shared_ptr<ProcessGroup> shared_duplicate(const std::shared_ptr<ProcessGroup>& group);

}  // namespace gradwire::internal
