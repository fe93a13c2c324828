// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <random>

#include "gradwire/base/os_handles.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

constexpr int kLowest = 10000;  // well-known services are below
constexpr int kDraws = 100;

// Returns the first port that the kernel gives to sockets that ask for none.
int first_ephemeral_port() {
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0;
  return range >> first ? first : 0;
}

// Returns `port`, or a port of the kernel's choice where `port` is 0; nothing if the port is taken.
std::optional<std::uint16_t> bind_once(PortScope scope, int port) {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) throw_errno("cannot open a socket to find a free port");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(scope == PortScope::loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(probe.get(), generic, length) != 0) {
    if (port != 0 && (errno == EADDRINUSE || errno == EACCES)) return {};
    throw_errno("cannot find a free port");
  }
  if (::getsockname(probe.get(), generic, &length) != 0) throw_errno("cannot find a free port");
  return ntohs(address.sin_port);
}

}  // namespace

std::uint16_t find_free_port(PortScope scope) {
  const int end = first_ephemeral_port();
  std::random_device random;
  for (int draw = 0; end > kLowest && draw < kDraws; ++draw) {
    if (const auto port = bind_once(scope, std::uniform_int_distribution(kLowest, end - 1)(random))) return *port;
  }
  return *bind_once(scope, 0);
}

}  // namespace gradwire::launch
