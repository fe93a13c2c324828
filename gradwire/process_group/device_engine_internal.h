// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group whose calls go on upon a device after they have returned.
#pragma once

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The part of such a group that tells failures. Thread-safe.
class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  // Throws the error of the engine, when one of its calls failed after the call had returned. The work that the call
  // had queued on the device may then look as if it had ended well.
  virtual void require_well() = 0;
};

// The same for any group: does nothing for a group that is no DeviceEngine.
inline void require_well(ProcessGroup& group) {
  if (auto* const engine = dynamic_cast<DeviceEngine*>(&group)) engine->require_well();
}

}  // namespace gradwire::internal
