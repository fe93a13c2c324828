// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store_listen_internal.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::store_internal {

using asio::ip::tcp;

namespace {

using ReusePort = asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>;

// How many descriptors this process may have.
std::size_t most_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : std::size_t{1024};
}

}  // namespace

tcp::acceptor listen(asio::io_context& loop, const TcpStoreServerOptions& options) {
  asio::error_code error;
  const auto open = [&](const asio::ip::address& address) {
    tcp::acceptor acceptor(loop);
    const tcp::endpoint endpoint(address, options.port);
    acceptor.open(endpoint.protocol(), error);
    if (error) return acceptor;
    close_on_exec(acceptor);
    // Connections of an earlier server that linger in TIME_WAIT do not count as use of the port.
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && options.reuse_port) acceptor.set_option(ReusePort(true), error);
    if (!error && address.is_v6()) acceptor.set_option(asio::ip::v6_only(!address.is_unspecified()), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
    return acceptor;
  };
  const bool any = options.bind_address.empty();
  const asio::ip::address address =
      any ? asio::ip::address(asio::ip::address_v6::any()) : asio::ip::make_address(options.bind_address, error);
  if (error) {
    throw InvalidArgument(concat("TcpStore: '", options.bind_address, "' is no numeric address to listen on"));
  }
  tcp::acceptor acceptor = open(address);
  // A kernel without IPv6 refuses the first try.
  if (error && any && error != asio::error::address_in_use) acceptor = open(asio::ip::address_v4::any());
  if (error == asio::error::address_in_use) {
    throw StoreError(concat("TcpStore: port ", options.port,
                            " is in use by another program (or by a store that is still open); "
                            "choose another port, or 0 for any"));
  }
  if (is_refusal_of_machine(error))
    throw ResourceError(concat("TcpStore: cannot listen on port ", options.port, ": ", error.message()));
  if (error) throw StoreError(concat("TcpStore: cannot listen on port ", options.port, ": ", error.message()));
  return acceptor;
}

TcpStoreServerOptions within_descriptors(TcpStoreServerOptions options) {
  const std::size_t most = most_descriptors();
  options.limits.connections = std::min(options.limits.connections, std::max<std::size_t>(most / 4 * 3, 1));
  options.max_unauthenticated = std::min(options.max_unauthenticated, std::max<std::size_t>(most / 8, 1));
  return options;
}

}  // namespace gradwire::store_internal
