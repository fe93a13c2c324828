// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The server of TcpStores: one thread that runs one event loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/process.h"
#include "gradwire/store/process_bound_internal.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store_internal {

struct TcpStoreServerOptions {
  std::string bind_address;  // a numeric address; empty: all interfaces, IPv4 and IPv6
  std::uint16_t port = 0;    // 0: any free one
  bool reuse_port = false;   // SO_REUSEPORT
  std::string secret = {};   // the secret that clients must prove to know; empty: none
  TcpStoreLimits limits = {};
  std::map<std::string, std::string> contents = {};                  // what the store has from the beginning
  std::function<void(const std::string& sentence)> on_refusal = {};  // as TcpStoreOptions says
  // A client must say hello, and prove that it knows the secret, within this time.
  Milliseconds hello_timeout = std::chrono::seconds(10);
  // The most connections whose clients have not done so yet. One more, and the oldest of them is closed.
  std::size_t max_unauthenticated = 256;
  // on_refusal is called for so many addresses.
  std::size_t max_told_addresses = 64;
};

// Serves until it is destroyed; the destructor closes all connections. Whatever a client sends, the server closes at
// most the connection of that client.
class TcpStoreServer final {
 public:
  // Binds, listens and starts the thread. Throws StoreError when the port is in use or may not be bound, or when the
  // contents pass the limits,
  // InvalidArgument when `bind_address` is no numeric address, ResourceError when the machine refuses what the event
  // loop needs.
  explicit TcpStoreServer(const TcpStoreServerOptions& options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  std::uint16_t port() const noexcept { return port_; }

  // Whether the server belongs to this process: a forked child has only copies of its parent's.
  bool is_current() const noexcept { return impl_.is_current(); }
  // Whether `secret` is what clients must know. Throws InvalidArgument in a forked child.
  bool has_secret(const std::string& secret) const;

  // Waits until `count` workers have joined. Throws TimeoutError that says how many had.
  void wait_for_workers(int count, Deadline deadline);

  class Impl;

 private:
  ProcessBound<Impl> impl_;
  Thread thread_;
  std::uint16_t port_;
};

}  // namespace gradwire::store_internal
