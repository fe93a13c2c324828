// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A descriptor that one thread makes readable, to wake another thread.
#pragma once

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// Thread-safe.
class Wakeup {
 public:
  Wakeup();  // throws LaunchError
  // Makes fd() readable, until clear().
  void raise() noexcept;
  void clear() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace gradwire::launch
