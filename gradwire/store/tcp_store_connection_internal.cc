// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store_connection_internal.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "gradwire/base/address.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/asio_internal.h"
#include "gradwire/store/handshake_internal.h"
#include "gradwire/store/name_lookup_internal.h"

namespace gradwire::store_internal {

using asio::ip::tcp;

namespace {

constexpr Milliseconds kFirstPause{10};
constexpr Milliseconds kLongestPause{500};
constexpr int kMostRefusals = 20;
// A host that does not answer at all is tried anew after this, so that the wait can be reported.
constexpr Milliseconds kOneAttempt{10'000};
// The server may not have started yet.
bool is_nobody_there(const asio::error_code& error) {
  return error == asio::error::connection_refused || error == asio::error::host_unreachable ||
         error == asio::error::network_unreachable || error == asio::error::timed_out ||
         error == asio::error::host_not_found || error == asio::error::host_not_found_try_again;
}

// The server may have shed this connection in a rush of others.
bool is_hung_up(const asio::error_code& error) {
  return error == asio::error::connection_reset || error == asio::error::connection_aborted ||
         error == asio::error::eof || error == asio::error::broken_pipe;
}

// A later try may succeed.
bool may_pass(const asio::error_code& error) { return is_nobody_there(error) || is_hung_up(error); }

}  // namespace

class GRADWIRE_HIDDEN TcpStoreConnection::Impl final {
 public:
  Impl(std::string host, std::uint16_t port, std::string secret)
      : host_(std::move(host)), port_(port), secret_(std::move(secret)) {}
  ~Impl() { close(); }

  void connect(Deadline deadline, Retry retry, WaitReport::Periods reports) {
    int hung_up = 0;
    WaitReport report(reports);
    for (Milliseconds pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
      const asio::error_code error = try_to_connect(deadline);
      if (!error) return;
      if (is_hung_up(error) && ++hung_up == kMostRefusals) {
        throw StoreError(concat(name(), ": whoever listens there closes every connection; is it another program?"));
      }
      if (is_refusal_of_machine(error)) {
        throw ResourceError(concat(name(), ": cannot connect: ", error.message()));
      }
      if (!is_hung_up(error) && (retry == Retry::no || !is_nobody_there(error))) {
        throw StoreError(concat(name(), ": cannot connect: ", error.message()));
      }
      report.look(name(),
                  [&] { return WaitReport::Missing{concat("the rank that runs the server (", error.message(), ")")}; });
      wait_until(deadline.earlier(Deadline::after(pause)));
      if (deadline.expired()) {
        throw TimeoutError(concat(name(), ": could not connect in time (", error.message(),
                                  "); has the rank that runs the server started, on that host and port?"));
      }
    }
  }

  Reply exchange(const Request& request, Deadline deadline) {
    const std::string bytes = encode(request);
    check(write(bytes, deadline), "sending a request");
    std::array<char, kLengthBytes> head{};
    check(read(head.data(), head.size(), deadline), "waiting for a reply");
    const std::uint64_t length = decode_length(std::string_view(head.data(), head.size()));
    if (length == 0 || length > kMaxMessageBytes) fail_strange();
    std::string body;
    while (body.size() < length) {
      const std::size_t done = body.size();
      body.resize(std::min<std::size_t>(length, done + std::max(done, kFirstChunkBytes)));
      check(read(body.data() + done, body.size() - done, deadline), "waiting for a reply");
    }
    auto reply = decode_reply(body);
    if (!reply) fail_strange();
    return *std::move(reply);
  }

 private:
  std::string name() const { return concat("TcpStore ", host_and_port(host_, port_)); }

  [[noreturn]] void fail_strange() const {
    throw StoreError(concat(name(), ": the server's reply is malformed; is another program listening there?"));
  }

  void check(const asio::error_code& error, const char* doing) const {
    if (!error) return;
    if (error == asio::error::operation_aborted) {
      throw TimeoutError(
          concat(name(), ": the server did not answer in time (", doing, "); it is stopped or unreachable"));
    }
    throw StoreError(concat(name(), ": the connection broke while ", doing, " (", error.message(),
                            "); the rank that runs the server has ended or closed its store"));
  }

  void close() {
    asio::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);  // for forked children that hold a copy
    socket_.close(ignored);
  }

  void wait_until(Deadline end) const {
    do {
      throw_if_interrupted(name());
      ::poll(nullptr, 0, static_cast<int>(std::min(kInterruptLook, end.remaining()).count()));
    } while (!end.expired());
  }

  // Runs one asynchronous operation to its end; operation_aborted when `deadline` came first. An interrupted thread
  // leaves a closed connection.
  template <class Start>
  asio::error_code finish(Deadline deadline, Start start) {
    asio::error_code result = asio::error::would_block;
    start([&result](const asio::error_code& error, auto&&...) { result = error; });
    loop_.restart();
    const bool looks = interrupt_check() != nullptr;
    bool is_interrupted = false;
    do {
      loop_.run_until((looks ? deadline.earlier(Deadline::after(kInterruptLook)) : deadline).point());
      is_interrupted = looks && result == asio::error::would_block && interrupt_check()();
    } while (result == asio::error::would_block && !is_interrupted && !deadline.expired());
    if (result == asio::error::would_block) {
      close();
      loop_.run();
      result = asio::error::operation_aborted;
    }
    if (is_interrupted) throw AbortedError(concat(name(), ": interrupted while waiting for the server"));
    return result;
  }

  asio::error_code write(const std::string& bytes, Deadline deadline) {
    return finish(deadline, [&](auto done) { asio::async_write(socket_, asio::buffer(bytes), done); });
  }

  asio::error_code read(char* data, std::size_t bytes, Deadline deadline) {
    return finish(deadline, [&](auto done) { asio::async_read(socket_, asio::buffer(data, bytes), done); });
  }

  asio::error_code try_to_connect(Deadline deadline) {
    asio::error_code error;
    const auto addresses = look_up(host_, deadline, error);
    if (error == asio::error::operation_aborted) {
      throw TimeoutError(concat(name(),
                                ": the name of the host was not found in time: the resolver does not answer "
                                "(/etc/resolv.conf names its servers); a numeric address needs none"));
    }
    // The error that is told. A later try may succeed where one address says so, whatever another says: "localhost" has
    // an address of IPv6 also on hosts that have IPv6 switched off.
    asio::error_code told = error;
    for (const auto& address : addresses) {
      close();
      const Deadline attempt = deadline.earlier(Deadline::after(kOneAttempt));
      error = finish(attempt, [&](auto done) { socket_.async_connect(tcp::endpoint(address, port_), done); });
      if (error == asio::error::operation_aborted && !deadline.expired()) error = asio::error::timed_out;
      const bool is_connected = !error;
      if (is_connected) error = greet(deadline);
      if (!error) return error;
      if (error == asio::error::operation_aborted && is_connected) {
        throw TimeoutError(concat(name(),
                                  ": connected, but no store's server answered in time; does another program listen "
                                  "there (torchrun's store, for example), or does the server stand still?"));
      }
      if (error == asio::error::operation_aborted) {
        throw TimeoutError(concat(
            name(), ": could not connect in time; has the rank that runs the server started, on that host and port?"));
      }
      if (!may_pass(told)) told = error;
    }
    return told;
  }

  asio::error_code greet(Deadline deadline) {
    asio::error_code ignored;
    // A client that knocks on a free port of its own host may be given that very port as its source, and reach itself.
    if (socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored)) return asio::error::connection_refused;
    close_on_exec(socket_);
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    if (const auto error = write(client_hello(), deadline)) return error;
    std::array<char, kHelloBytes> hello{};
    if (const auto error = read(hello.data(), hello.size(), deadline)) return error;
    const auto server = decode_server_hello(std::string_view(hello.data(), hello.size()));
    if (!server) throw StoreError(concat(name(), ": another program listens there (it is no store's server)"));
    if (server->version != kTcpStoreVersion) {
      throw StoreError(concat(name(), ": the server speaks version ", server->version,
                              " of the store's protocol, this program ", int{kTcpStoreVersion},
                              "; run the same release of gradwire on all ranks"));
    }
    if (server->says == ServerSays::full) {
      throw StoreError(concat(name(),
                              ": the server has as many connections as it takes (TcpStoreLimits::connections, and "
                              "three quarters of the descriptors that its process may have)"));
    }
    if (server->says == ServerSays::prove) return exchange_proofs(deadline);
    if (secret_.empty()) return {};
    throw StoreError(concat(name(),
                            ": the server asks for no secret, though this program was given one; give all "
                            "ranks of the job the same secret"));
  }

  asio::error_code exchange_proofs(Deadline deadline) {
    if (secret_.empty()) {
      throw StoreError(concat(name(),
                              ": the server asks for a secret and this program was given none; set "
                              "GRADWIRE_SECRET_FILE to the file that holds the job's secret"));
    }
    Challenges challenges{std::string(kChallengeBytes, '\0'), random_challenge()};
    std::string& from_server = challenges.of_server;
    if (const auto error = read(from_server.data(), from_server.size(), deadline)) return error;
    if (const auto error = write(challenges.of_client + proof_of(Role::client, secret_, challenges), deadline)) {
      return error;
    }
    std::string answer(1 + kProofBytes, '\0');
    if (const auto error = read(answer.data(), answer.size(), deadline)) return error;
    if (answer.front() != kProofAccepted) {
      throw StoreError(
          concat(name(), ": the server refused this program's secret; give all ranks of the job the same"));
    }
    if (!same_proof(answer.substr(1), proof_of(Role::server, secret_, challenges))) {
      throw StoreError(concat(name(), ": the server does not know this program's secret; is it another job's?"));
    }
    return {};
  }

  const std::string host_;
  const std::uint16_t port_;
  const std::string secret_;
  asio::io_context loop_{1};
  tcp::socket socket_{loop_};
};

TcpStoreConnection::TcpStoreConnection(const std::string& host, std::uint16_t port, const std::string& secret,
                                       Deadline deadline, Retry retry, WaitReport::Periods reports) {
  try {
    impl_ = std::make_unique<Impl>(host, port, secret);
  } catch (const std::system_error& problem) {  // out of descriptors
    throw ResourceError(concat("TcpStore ", host_and_port(host, port), ": cannot make a connection: ", problem.what()));
  }
  try {
    impl_->connect(deadline, retry, reports);
  } catch (const std::system_error& problem) {  // of the thread that looks the name up
    throw ResourceError(concat("TcpStore ", host_and_port(host, port), ": cannot connect: ", problem.what()));
  }
}

TcpStoreConnection::~TcpStoreConnection() = default;

Reply TcpStoreConnection::exchange(const Request& request, Deadline deadline) {
  return impl_->exchange(request, deadline);
}

}  // namespace gradwire::store_internal
