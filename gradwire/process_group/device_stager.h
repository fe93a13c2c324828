// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups whose engines move memory of the host, and which take tensors on devices all the same.
#pragma once

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// A group that copies tensors on a device into memory of the host, calls its engine there, and copies the results back.
// Its collectives have ended when they return, and may come from several threads, so DDP uses lanes over such a group
// also for gradients on a device. send() and recv() return before their messages have moved: wait for their Works. A
// class of groups that does this derives from DeviceStager too. Thread-safe.
class DeviceStager {
 public:
  virtual ~DeviceStager() = default;
  // Whether this group works in that way. A group that passes calls on answers as the group below does.
  virtual bool stages_devices() const = 0;
};

// The same of any group: false for a group that is no DeviceStager.
inline bool stages_devices(const ProcessGroup& group) {
  const auto* const stager = dynamic_cast<const DeviceStager*>(&group);
  return stager != nullptr && stager->stages_devices();
}

}  // namespace gradwire
