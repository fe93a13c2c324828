// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups whose engines move memory of the host, and which take tensors on devices all the same.
#pragma once

namespace gradwire {

// A group that copies tensors on a device into memory of the host, calls its engine there, and copies the results back.
// Its collectives have ended when they return, and may come from several threads, so DDP uses lanes over such a group
// also for gradients on a device. send() and recv() return before their messages have moved: wait for their Works. A
// class of groups that does this derives from DeviceStager too. Thread-safe.
class DeviceStager {
 public:
  virtual ~DeviceStager() = default;
  // Whether this group works in that way.
  virtual bool stages_devices() const = 0;
};

}  // namespace gradwire
