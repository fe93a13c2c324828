// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/wakeup.h"

#include <sys/eventfd.h>

#include "launch/launch_error.h"

namespace gradwire::launch {

Wakeup::Wakeup() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw_errno("cannot make an event descriptor");
}

void Wakeup::raise() noexcept { static_cast<void>(::eventfd_write(fd_.get(), 1)); }

void Wakeup::clear() noexcept {
  eventfd_t ignored = 0;
  static_cast<void>(::eventfd_read(fd_.get(), &ignored));
}

}  // namespace gradwire::launch
