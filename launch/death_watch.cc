// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/death_watch.h"

#include <sys/epoll.h>

#include <array>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/options.h"

namespace gradwire::launch {

DeathWatch::DeathWatch() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("cannot make an epoll descriptor to watch the ranks with");
}

void DeathWatch::add(int rank, const std::string& name, int pidfd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = rank;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd, &event) != 0) throw_errno(concat("cannot watch ", name));
}

std::vector<int> DeathWatch::ended() const {
  std::array<epoll_event, kMaxRanks> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(events[i].data.fd);
  return ranks;
}

void DeathWatch::remove(int pidfd) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pidfd, nullptr); }

}  // namespace gradwire::launch
