// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/interface_internal.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/name_lookup_internal.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::ucx {
namespace {

// An address of an interface that is up.
struct LocalAddress {
  std::string interface;
  bool loopback;
  std::string bytes;  // of the address, 4 or 16
};

std::string bytes_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const char*>(&v4->sin_addr), sizeof(v4->sin_addr)};
  }
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return {reinterpret_cast<const char*>(&v6->sin6_addr), sizeof(v6->sin6_addr)};
}

std::vector<LocalAddress> local_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw ResourceError("backend ucx: the kernel does not name its network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  std::vector<LocalAddress> addresses;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    addresses.push_back({each->ifa_name, (each->ifa_flags & IFF_LOOPBACK) != 0, bytes_of(each->ifa_addr)});
  }
  return addresses;
}

// The interface through which this host would send to `address`. Nothing is sent.
std::optional<std::string> interface_towards(const asio::ip::address& address,
                                             const std::vector<LocalAddress>& locals) {
  const asio::ip::udp::endpoint to(address, 9);
  const UniqueFd socket(::socket(to.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), to.data(), static_cast<socklen_t>(to.size())) != 0) return std::nullopt;
  sockaddr_storage from{};
  socklen_t bytes = sizeof(from);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&from), &bytes) != 0) return std::nullopt;
  const std::string source = bytes_of(reinterpret_cast<const sockaddr*>(&from));
  for (const LocalAddress& local : locals) {
    if (local.bytes == source && !local.loopback) return local.interface;
  }
  return std::nullopt;  // loopback: no other host is reached through it
}

// The store that all calls of `store` come to: elastic jobs wrap theirs, and parts of a store have prefixes.
const Store& innermost(const Store& store) {
  const Store* inner = &store;
  for (;;) {
    if (const auto* const prefixed = dynamic_cast<const PrefixStore*>(inner)) {
      inner = prefixed->underlying().get();
    } else if (const auto* const forwarding = dynamic_cast<const ForwardingStore*>(inner)) {
      inner = forwarding->underlying().get();
    } else {
      return *inner;
    }
  }
}

std::optional<std::string> interface_towards_store(Store& store, const std::vector<LocalAddress>& locals,
                                                   Deadline deadline) {
  const auto* const server = dynamic_cast<const TcpStore*>(&innermost(store));
  if (server == nullptr) return std::nullopt;
  asio::error_code error;
  for (const asio::ip::address& address : store_internal::look_up(server->host(), deadline, error)) {
    if (const auto found = interface_towards(address, locals)) return found;
  }
  return std::nullopt;
}

std::string named_interface(const std::string& name, const std::vector<LocalAddress>& locals) {
  std::vector<std::string> known;
  for (const LocalAddress& local : locals) {
    if (local.interface == name) return name;
    if (std::find(known.begin(), known.end(), local.interface) == known.end()) known.push_back(local.interface);
  }
  throw InvalidArgument(concat("GRADWIRE_INTERFACE=", name,
                               ": this host has no such interface that is up and has an address; it has ",
                               join(known, ", ")));
}

}  // namespace

std::string choose_interface(Store& store, bool one_host, Deadline deadline) {
  const std::vector<LocalAddress> locals = local_addresses();
  if (const auto named = environment("GRADWIRE_INTERFACE")) return named_interface(*named, locals);
  const auto first = [&](bool loopback) -> std::optional<std::string> {
    const auto found =
        std::find_if(locals.begin(), locals.end(), [&](const auto& local) { return local.loopback == loopback; });
    return found == locals.end() ? std::nullopt : std::optional(found->interface);
  };
  const auto loopback = first(true);
  if (one_host && loopback) return *loopback;
  if (const auto found = interface_towards_store(store, locals, deadline)) return *found;
  // An address that is nobody's (RFC 5737) goes where the default route goes.
  if (const auto found = interface_towards(asio::ip::make_address("192.0.2.1"), locals)) return *found;
  if (const auto found = first(false)) return *found;
  if (loopback) return *loopback;
  throw InvalidArgument("backend ucx: this host has no network interface that is up and has an address");
}

}  // namespace gradwire::ucx
