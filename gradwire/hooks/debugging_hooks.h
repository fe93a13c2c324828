// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks for looking into training, not for training.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Communicates nothing: each rank keeps its own gradients, undivided, so replicas drift apart. Shows what communication
// costs. `group` is not used.
Future noop_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

std::shared_ptr<CommHook> make_noop_hook();

}  // namespace gradwire
