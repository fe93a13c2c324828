// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One client's connection as the server sees it: hello, proof of the secret, framing, one request at a time.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/store/asio_internal.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/tcp_store_protocol_internal.h"

namespace gradwire::store_internal {

// Runs on the server's event loop only. Keeps itself alive while an operation on its socket is under way.
//
// Memory is bounded: a session has no buffer before a valid hello, then at most twice the bytes of one message that
// have arrived. The session reads the next request only after the reply to the last one was sent. It asks the owner for
// the bytes of a message beyond kFreeBytes. A request for which there is no room is read, dropped, and answered with an
// error.
class GRADWIRE_HIDDEN TcpStoreSession final : public std::enable_shared_from_this<TcpStoreSession> {
 public:
  using Ptr = std::shared_ptr<TcpStoreSession>;

  // A message of at most this many bytes is not counted.
  static constexpr std::size_t kFreeBytes = 64 * 1024;

  // The server, as a session sees it.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Whether another client may come.
    virtual bool admits() const = 0;
    // Counts the bytes of messages that a session holds: `before` so far, `after` from now on. Returns false, and
    // counts nothing, where there is no room for `after`.
    virtual bool count_bytes(std::size_t before, std::size_t after) = 0;
    // The client has said hello and, where there is a secret, proved that it knows the secret.
    virtual void greeted(const Ptr& session) = 0;
    // The client at `address` did not prove that it knows the secret; `reason` says how.
    virtual void refused(const std::string& address, const char* reason) = 0;
    // Must call reply() or hold().
    virtual void requested(const Ptr& session, Request request) = 0;
    // Called once, before the session releases the reference to itself.
    virtual void closed(const Ptr& session) = 0;
  };

  // `secret` (empty: none) and `owner` live longer than the event loop runs.
  TcpStoreSession(asio::ip::tcp::socket socket, const std::string& secret, Owner& owner);

  // Waits for the hello and the proof until `deadline`.
  void start(Deadline deadline);

  // Answers the current request and goes on to the next. Returns false when there was no room for the reply; the client
  // got an error instead.
  bool reply(const Reply& reply);

  // Leaves the request unanswered for now: calls `expired` at `deadline` unless reply() came first. If the client
  // disconnects or sends anything meanwhile, its connection is closed.
  void hold(Deadline deadline, std::function<void()> expired);

  void close();

 private:
  void read_hello();
  void read_proof();
  void check_proof();
  void refuse(const char* reason);
  void greet();
  void read_length();
  void read_body(std::size_t length);
  void drop_body(std::size_t rest);
  bool hold_bytes(std::size_t bytes);
  void send(std::string bytes);
  void start_timer(Deadline deadline, std::function<void()> expired);
  // Wraps a handler: closes the session on an error, does nothing when it is closed already.
  template <class Next>
  auto then(Next next);

  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  const std::string& secret_;
  const std::string address_;  // the client's
  Owner& owner_;
  bool closed_ = false;
  bool held_ = false;
  bool asked_for_proof_ = false;
  bool watching_ = false;   // whether an operation waits for bytes or the end of a held connection
  std::uint64_t turn_ = 0;  // changes with every hold() and reply(), so that a timer of an earlier turn can tell
  std::array<char, kLengthBytes> head_{};
  Challenges challenges_;
  std::string body_;
  std::string out_;
  std::size_t bytes_ = 0;  // as the owner has counted them
};

}  // namespace gradwire::store_internal
