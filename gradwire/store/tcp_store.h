// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store behind a TCP port, which one rank serves: for ranks on several hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire {

// What a server holds at most, so that whoever can connect cannot use up its process's memory and descriptors. Keys and
// values have the limits of Store (64 KiB and 16 MiB).
struct TcpStoreLimits {
  // Clients' connections; at most three quarters of the descriptors that the process may have. A client beyond is
  // refused: StoreError.
  std::size_t connections = 4096;
  // All keys, values and elements of queues, each counted with 128 bytes more. What would not fit is refused,
  // StoreError, and changes nothing.
  std::size_t stored_bytes = std::size_t{2} << 30;
  // All requests and replies under way, those of at most 64 KiB not counted. A request or reply that would not fit is
  // dropped, StoreError; a queue keeps the element that could not be sent.
  std::size_t message_bytes = std::size_t{2} << 30;
};

struct TcpStoreOptions {
  // Where the server is: a host name or numeric address.
  std::string host = "127.0.0.1";
  // The server's port. 0, for the server only: any free port; TcpStore::port() tells which.
  std::uint16_t port = 0;
  // Whether this process runs the server (one rank does, rank 0 by custom).
  bool is_server = false;
  // The number of ranks that connect; -1 when unknown.
  int world_size = -1;
  // With a known world size the server's constructor returns when that many ranks have connected, itself included.
  bool wait_for_workers = true;
  // The store's timeout(); the constructor takes no longer either.
  Milliseconds timeout = kDefaultTimeout;
  // Shared by all processes of the job: the server refuses clients that do not know it, and clients a server that does
  // not (it never goes over the wire). Empty: anyone may connect. See secret.h.
  std::string secret = {};
  // For the server: the numeric address of the interface to listen on. Empty: loopback when `host` is "localhost" or a
  // loopback address, all interfaces otherwise.
  std::string bind_address = {};
  // For the server: sets SO_REUSEPORT, so that it can take a port over from a socket that was bound with the same
  // option to reserve it. (A port that an earlier server has just left can be bound again in any case.)
  bool reuse_port = false;
  // For the server.
  TcpStoreLimits limits = {};
};

// A client of the server, and, with is_server, the owner of the server: one thread, which serves until the last handle
// (clones included) of this store is gone. Close it after all ranks are done.
//
// Thread-safe; a method that waits holds no other up (each call under way has a connection of its own).
//
// A method throws StoreError as soon as the connection breaks, because the server's process died, say. Where the server
// goes silent instead, it throws TimeoutError: get, wait and queue_pop one second after their time, which the server
// watches; the others at timeout(), but not before one second. A process that was forked from the server's holds its
// connections open: if the server is killed while such a child lives on, that looks like silence.
//
// A caller that dies or gives up while an element is on the way to its queue_pop takes that element with it.
//
// Without a secret the server is for a trusted network: anyone who can connect can read and write. With one it lets in
// those who know it; what they say is neither encrypted nor signed. Garbage (a port scan, a malformed or oversized
// message) closes the connection that sent it and nothing else. TcpStoreLimits bounds what a server holds; who passes a
// limit gets a StoreError that names the limit. A forked child must not use a TcpStore
// (InvalidArgument). docs/format/tcp_store.md specifies the protocol.
class TcpStore final : public Store {
 public:
  // Starts the server if it is this process's, then connects; a client tries again until the server is there. Throws
  // StoreError when the port is in use, or something else listens there, or the secret is another, TimeoutError,
  // InvalidArgument for options that make no sense.
  explicit TcpStore(TcpStoreOptions options);
  class Impl;
  explicit TcpStore(std::unique_ptr<Impl> impl);  // for clone(); nobody else has an Impl
  ~TcpStore() override;

  const std::string& host() const noexcept;
  std::uint16_t port() const noexcept;

  void set(const std::string& key, const Value& value) override;
  Value get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  bool check(std::span<const std::string> keys) override;
  bool delete_key(const std::string& key) override;
  std::int64_t num_keys() override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
