// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups whose calls go on upon a device after they have returned.
#pragma once

namespace gradwire {

// The part of such a group that tells failures. A group that passes calls on to another group derives from this class
// too, and passes the question on. Thread-safe.
class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  // Throws the error of the engine, when one of its calls failed after the call had returned. The work that the call
  // had queued on the device may then look as if it had ended well.
  virtual void require_well() = 0;
};

}  // namespace gradwire
