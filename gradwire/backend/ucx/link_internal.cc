// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/link_internal.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <limits>

#include "gradwire/base/os_handles.h"

namespace gradwire::ucx {
namespace {

// A socket that becomes readable whenever an interface changes.
UniqueFd watch_links() {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl links{};
  links.nl_family = AF_NETLINK;
  links.nl_groups = RTMGRP_LINK;
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&links), sizeof(links)) != 0) return {};
  return socket;
}

bool is_running(int socket, const std::string& interface) {
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  return ::ioctl(socket, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0 &&
         (request.ifr_flags & IFF_RUNNING) != 0;
}

}  // namespace

bool await_link(const std::string& interface, Deadline deadline) {
  const UniqueFd asks(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!asks) return false;
  if (is_running(asks.get(), interface)) return true;
  const UniqueFd changes = watch_links();
  if (!changes) return false;
  std::array<char, 8192> ignored;
  while (!is_running(asks.get(), interface)) {
    if (deadline.expired()) return false;
    pollfd readable{changes.get(), POLLIN, 0};
    const auto longest = static_cast<Milliseconds::rep>(std::numeric_limits<int>::max());
    ::poll(&readable, 1, static_cast<int>(std::min(deadline.remaining().count(), longest)));
    while (::recv(changes.get(), ignored.data(), ignored.size(), 0) > 0) {
    }
  }
  return true;
}

}  // namespace gradwire::ucx
