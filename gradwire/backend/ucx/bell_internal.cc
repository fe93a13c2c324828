// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/bell_internal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {

Bell::Bell() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw ResourceError(concat("backend ucx: no eventfd: ", std::strerror(errno)));
}

void Bell::ring() noexcept {
  number_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint64_t ring = 1;
  static_cast<void>(!::write(event_.get(), &ring, sizeof(ring)));
}

void Bell::wait(int other, std::chrono::microseconds limit) noexcept {
  pollfd events[2] = {{event_.get(), POLLIN, 0}, {other, POLLIN, 0}};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const std::chrono::nanoseconds rest = limit - seconds;
  const timespec timeout{static_cast<std::time_t>(seconds.count()), static_cast<long>(rest.count())};
  ::ppoll(events, 2, &timeout, nullptr);
  std::uint64_t rings = 0;
  if ((events[0].revents & POLLIN) != 0) static_cast<void>(!::read(event_.get(), &rings, sizeof(rings)));
}

}  // namespace gradwire::ucx
