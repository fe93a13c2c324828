// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/tcp_store_session_internal.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"

namespace gradwire::store_internal {
namespace {

constexpr std::size_t kFirstChunkBytes = 64 * 1024;
static_assert(kHelloBytes <= kLengthBytes);

}  // namespace

template <class Next>
auto TcpStoreSession::then(Next next) {
  return [self = shared_from_this(), next = std::move(next)](const asio::error_code& error, std::size_t = 0) {
    if (self->closed_) return;
    if (error) return self->close();
    try {
      next();
    } catch (const std::exception& problem) {  // no memory for this client's message
      log::warn(std::string("tcp store: closing a connection: ") + problem.what());
      self->close();
    }
  };
}

TcpStoreSession::TcpStoreSession(asio::ip::tcp::socket socket, const std::string& secret, Owner& owner)
    : socket_(std::move(socket)), timer_(socket_.get_executor()), secret_(secret), owner_(owner) {
  asio::error_code ignored;  // a connection that cannot take an option works without
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

void TcpStoreSession::start(Deadline deadline) {
  start_timer(deadline, [this] { close(); });
  read_hello();
}

void TcpStoreSession::read_hello() {
  asio::async_read(socket_, asio::buffer(head_.data(), kHelloBytes), then([this] {
                     const auto client = decode_client_hello(std::string_view(head_.data(), kHelloBytes));
                     if (!client) {
                       log::debug("tcp store: closing a connection that does not speak the store's protocol");
                       return close();
                     }
                     out_ = server_hello(!secret_.empty());
                     if (client->version != kTcpStoreVersion) {
                       log::warn(concat("tcp store: refused a client that speaks version ", client->version,
                                        " of the store's protocol; this server speaks ", int{kTcpStoreVersion}));
                       return asio::async_write(socket_, asio::buffer(out_), then([this] { close(); }));
                     }
                     if (!secret_.empty()) return read_proof();
                     greet();
                   }));
}

void TcpStoreSession::read_proof() {
  challenges_.of_server = random_challenge();
  out_ += challenges_.of_server;
  body_.resize(kChallengeBytes + kProofBytes);
  asio::async_write(socket_, asio::buffer(out_),
                    then([this] { asio::async_read(socket_, asio::buffer(body_), then([this] { check_proof(); })); }));
}

void TcpStoreSession::check_proof() {
  const std::string said = std::exchange(body_, {});
  challenges_.of_client = said.substr(0, kChallengeBytes);
  if (same_proof(said.substr(kChallengeBytes), proof_of(Role::client, secret_, challenges_))) {
    out_ = kProofAccepted + proof_of(Role::server, secret_, challenges_);
    return greet();
  }
  asio::error_code ignored;
  log::warn(concat("tcp store: refused a client with another secret, from ",
                   socket_.remote_endpoint(ignored).address().to_string()));
  out_ = std::string(1, kProofRefused) + std::string(kProofBytes, '\0');
  asio::async_write(socket_, asio::buffer(out_), then([this] { close(); }));
}

// Sends what is in out_, and goes on to the requests.
void TcpStoreSession::greet() {
  timer_.cancel();
  ++turn_;
  owner_.greeted(shared_from_this());
  asio::async_write(socket_, asio::buffer(out_), then([this] { read_length(); }));
}

void TcpStoreSession::read_length() {
  out_ = {};
  asio::async_read(socket_, asio::buffer(head_), then([this] {
                     const std::uint64_t length = decode_length(std::string_view(head_.data(), head_.size()));
                     if (length == 0 || length > kMaxMessageBytes) {
                       log::debug("tcp store: closing a connection that declared a message of impossible length");
                       return close();
                     }
                     read_body(static_cast<std::size_t>(length));
                   }));
}

void TcpStoreSession::read_body(std::size_t length) {
  const std::size_t done = body_.size();
  const std::size_t chunk = std::min(length - done, std::max(done, kFirstChunkBytes));
  body_.resize(done + chunk);
  asio::async_read(socket_, asio::buffer(body_.data() + done, chunk), then([this, length] {
                     if (body_.size() < length) return read_body(length);
                     const std::string body = std::exchange(body_, {});
                     auto request = decode_request(body);
                     if (!request) {
                       log::debug("tcp store: closing a connection that sent a malformed message");
                       return close();
                     }
                     owner_.requested(shared_from_this(), *std::move(request));
                   }));
}

void TcpStoreSession::reply(const Reply& reply) {
  if (closed_) return;
  ++turn_;
  held_ = false;
  timer_.cancel();
  out_ = encode(reply);
  asio::async_write(socket_, asio::buffer(out_), then([this] { read_length(); }));
}

void TcpStoreSession::hold(Deadline deadline, std::function<void()> expired) {
  if (closed_) return;
  ++turn_;
  held_ = true;
  start_timer(deadline, std::move(expired));
  // This outlives reply() and then fires just before the next request is read; a second one would pile up meanwhile.
  if (std::exchange(watching_, true)) return;
  socket_.async_wait(asio::ip::tcp::socket::wait_read, then([this] {
                       watching_ = false;
                       if (held_) close();
                     }));
}

void TcpStoreSession::start_timer(Deadline deadline, std::function<void()> expired) {
  if (deadline.point() == Deadline::never().point()) return;
  timer_.expires_at(deadline.point());
  timer_.async_wait(
      [self = shared_from_this(), turn = turn_, expired = std::move(expired)](const asio::error_code& error) {
        if (!error && !self->closed_ && turn == self->turn_) expired();
      });
}

void TcpStoreSession::close() {
  if (std::exchange(closed_, true)) return;
  ++turn_;
  timer_.cancel();
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);  // for forked children that hold a copy
  socket_.close(ignored);
  body_ = {};
  owner_.closed(shared_from_this());
}

}  // namespace gradwire::store_internal
