// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store on a server that one rank runs, reached over TCP: for ranks on several hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire {

// The most that a server holds, so that clients cannot use up the memory and the descriptors of the server's process.
// Keys and values have the limits of Store (64 KiB and 16 MiB). A client that passes a limit gets a StoreError that
// names the limit.
struct TcpStoreLimits {
  // Connections of clients; in any case at most three quarters of the descriptors that the process may have. A further
  // client is refused.
  std::size_t connections = 4096;
  // Bytes of all keys, values and elements of queues; 128 are added for each. A change that does not fit is refused and
  // changes nothing.
  std::size_t stored_bytes = std::size_t{2} << 30;
  // Bytes of all requests and replies under way; those of at most 64 KiB are not counted. A request or reply that does
  // not fit is dropped. An element whose reply does not fit stays in its queue.
  std::size_t message_bytes = std::size_t{2} << 30;
};

struct TcpStoreOptions {
  // The server's host: a name or a numeric address.
  std::string host = "127.0.0.1";
  // The server's port. 0 means any free port, and is for the server only; TcpStore::port() returns the port.
  std::uint16_t port = 0;
  // Whether this process runs the server. One rank does; rank 0 by custom.
  bool is_server = false;
  // The number of ranks that connect; -1 when unknown.
  int world_size = -1;
  // Whether the server's constructor waits until `world_size` ranks have connected, itself included. Without effect
  // when the world size is unknown.
  bool wait_for_workers = true;
  // The store's timeout(), and the most that the constructor may take.
  Milliseconds timeout = kDefaultTimeout;
  // The secret of the job, the same in all processes (secret.h). The server refuses clients that do not know the
  // secret, and clients refuse such a server. The secret is never sent. Empty: anyone may connect.
  std::string secret = {};
  // For the server: the numeric address of the interface to listen on. Empty: loopback when `host` is "localhost" or a
  // loopback address, all interfaces otherwise.
  std::string bind_address = {};
  // For the server: sets SO_REUSEPORT. The server can then bind a port that another socket reserves with the same
  // option. (A port that an earlier server has just left can be bound again in any case.)
  bool reuse_port = false;
  // For the server: stores of this process with this option, one address and one port share one server, which serves
  // until the last handle of all of them is destroyed. The limits, contents and on_refusal of the first of them count,
  // and so do the ranks that have connected to it. Off: a second server at the port is a StoreError.
  bool multi_tenant = false;
  // For the server.
  TcpStoreLimits limits = {};
  // For the server: keys with their values that the store has before any client is served.
  std::map<std::string, std::string> contents = {};
  // For the server: gets a sentence that names the address of a client that was refused because of the secret. Called
  // at the first refusal of an address, for the first 64 addresses. Runs on the server's thread, so it must neither
  // block nor throw.
  std::function<void(const std::string& sentence)> on_refusal = {};
};

// A client of the server. With is_server, also the owner of the server: one thread, which serves until the last handle
// of this store (clones included) is destroyed. Destroy the server's handles after all ranks are done.
//
// Failure: a method throws StoreError as soon as its connection breaks, for example because the server's process died.
// If the server does not answer, the method throws TimeoutError: get(), multi_get(), wait() and queue_pop() one second
// after their timeout, which the server watches; other methods after timeout(), or after one second where that is
// longer. A child that the server's process forked keeps the connections open: if the server is killed while such a
// child lives, clients see a server that does not answer. If a caller dies or gives up while an element is on the way
// to its queue_pop(), the element is lost.
//
// Security: without a secret the server is for a trusted network, because anyone who can connect can read and write.
// With a secret the server serves only clients that know the secret; requests and replies are neither encrypted nor
// signed. A malformed or oversized message, or a port scan, closes the connection that sent it, and has no other
// effect. docs/format/tcp_store.md specifies the protocol.
//
// Thread-safe. Each call under way has a connection of its own, so a call that waits does not delay other calls. In a
// forked child every method that reaches the data throws InvalidArgument. store.h documents the methods.
class TcpStore final : public Store {
 public:
  // Starts the server if `options.is_server`, then connects. A client tries again until the server answers. Throws
  // StoreError when the port is in use, or shared with another secret, when a program that is no gradwire store listens
  // there, or when the secrets differ; TimeoutError when the server, or a rank that the server waits for, did not come
  // within `options.timeout`; InvalidArgument for options that contradict each other or are out of range; ResourceError
  // when the machine refuses what the server needs.
  explicit TcpStore(TcpStoreOptions options);
  class Impl;
  explicit TcpStore(std::unique_ptr<Impl> impl);  // for clone() only
  ~TcpStore() override;

  // The server's host, as the options named it, and the server's port.
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
  std::vector<std::string> list_keys() override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  Value queue_pop_within(const std::string& queue, Milliseconds timeout) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override;
  void set_timeout(Milliseconds timeout) override;
  std::shared_ptr<Store> clone() override;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire
