// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradwire/process_group/device_engine.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// DeviceEngine::require_well() of any group: does nothing for a group that is no DeviceEngine.
inline void require_well(ProcessGroup& group) {
  if (auto* const engine = dynamic_cast<DeviceEngine*>(&group)) engine->require_well();
}

}  // namespace gradwire::internal
