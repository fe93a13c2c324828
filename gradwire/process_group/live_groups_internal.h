// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The groups of this process that exist, so that code which ends the process can end their threads first.
#pragma once

#include <memory>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Every group is listed from its construction to its destruction. A forked child begins with an empty list.
// Thread-safe.
void list_group(ProcessGroup& group);
void unlist_group(ProcessGroup& group) noexcept;

// The listed groups that a shared_ptr holds, the youngest first: a group comes before the groups that it is made of.
std::vector<std::shared_ptr<ProcessGroup>> live_groups();

}  // namespace gradwire::internal
