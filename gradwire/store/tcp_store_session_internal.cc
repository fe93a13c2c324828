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

static_assert(kHelloBytes <= kLengthBytes && kFirstChunkBytes <= TcpStoreSession::kFreeBytes);

Reply no_room(const char* message) {
  return {Status::store_error,
          0,
          {concat("the server has no room for this ", message,
                  ": alone it is larger than TcpStoreLimits::message_bytes, or others have too much under way; raise "
                  "the limit of the rank that runs the server, or try again")}};
}

// The decoded lists of a request take that much beside its bytes.
std::size_t list_bytes(const Request& request) {
  return (request.keys.size() + request.values.size()) * sizeof(std::string);
}

std::string address_of_peer(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const asio::ip::address address = socket.remote_endpoint(error).address();
  if (error) return "an unknown address";
  // A socket for both protocols writes an IPv4 address as one of IPv6.
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return is_mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string() : address.to_string();
}

}  // namespace

template <class Next>
auto TcpStoreSession::then(Next next) {
  return [self = shared_from_this(), next = std::move(next)](const asio::error_code& error, std::size_t = 0) {
    if (self->closed_) return;
    try {
      if (!error) return next();
      if (self->asked_for_proof_) self->refuse("it gave no proof that it knows the secret");
    } catch (const std::exception& problem) {  // no memory for this client's message
      log::warn(std::string("tcp store: closing a connection: ") + problem.what());
    }
    self->close();
  };
}

TcpStoreSession::TcpStoreSession(asio::ip::tcp::socket socket, const std::string& secret, Owner& owner)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      secret_(secret),
      address_(address_of_peer(socket_)),
      owner_(owner) {
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
                     if (!owner_.admits()) {
                       log::warn("tcp store: refused a client: there are as many connections as the server takes");
                       out_ = server_hello(ServerSays::full);
                       return asio::async_write(socket_, asio::buffer(out_), then([this] { close(); }));
                     }
                     out_ = server_hello(secret_.empty() ? ServerSays::welcome : ServerSays::prove);
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
  asked_for_proof_ = true;
  asio::async_write(socket_, asio::buffer(out_),
                    then([this] { asio::async_read(socket_, asio::buffer(body_), then([this] { check_proof(); })); }));
}

void TcpStoreSession::check_proof() {
  asked_for_proof_ = false;
  const std::string said = std::exchange(body_, {});
  challenges_.of_client = said.substr(0, kChallengeBytes);
  if (same_proof(said.substr(kChallengeBytes), proof_of(Role::client, secret_, challenges_))) {
    out_ = kProofAccepted + proof_of(Role::server, secret_, challenges_);
    return greet();
  }
  refuse("its secret is another than this job's");
  out_ = std::string(1, kProofRefused) + std::string(kProofBytes, '\0');
  asio::async_write(socket_, asio::buffer(out_), then([this] { close(); }));
}

void TcpStoreSession::refuse(const char* reason) { owner_.refused(address_, reason); }

// Sends what is in out_, and goes on to the requests.
void TcpStoreSession::greet() {
  timer_.cancel();
  ++turn_;
  owner_.greeted(shared_from_this());
  asio::async_write(socket_, asio::buffer(out_), then([this] { read_length(); }));
}

void TcpStoreSession::read_length() {
  out_ = {};
  hold_bytes(0);
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
  if (!hold_bytes(done + chunk)) {
    body_ = {};
    hold_bytes(0);
    return drop_body(length - done);
  }
  body_.resize(done + chunk);
  asio::async_read(socket_, asio::buffer(body_.data() + done, chunk), then([this, length] {
                     if (body_.size() < length) return read_body(length);
                     const std::string body = std::exchange(body_, {});
                     auto request = decode_request(body);
                     if (!request) {
                       log::debug("tcp store: closing a connection that sent a malformed message");
                       return close();
                     }
                     if (!hold_bytes(body.size() + list_bytes(*request))) return send(encode(no_room("request")));
                     owner_.requested(shared_from_this(), *std::move(request));
                   }));
}

void TcpStoreSession::drop_body(std::size_t rest) {
  if (rest == 0) {
    body_ = {};
    return send(encode(no_room("request")));
  }
  body_.resize(std::min(rest, kFirstChunkBytes));
  asio::async_read(socket_, asio::buffer(body_), then([this, rest] { drop_body(rest - body_.size()); }));
}

bool TcpStoreSession::hold_bytes(std::size_t bytes) {
  const std::size_t counted = bytes <= kFreeBytes ? 0 : bytes;
  if (!owner_.count_bytes(bytes_, counted)) return false;
  bytes_ = counted;
  return true;
}

bool TcpStoreSession::reply(const Reply& reply) {
  if (closed_) return true;
  std::string bytes = encode(reply);
  const bool fits = hold_bytes(bytes.size());
  if (!fits) hold_bytes(0);
  send(fits ? std::move(bytes) : encode(no_room("reply")));
  return fits;
}

void TcpStoreSession::send(std::string bytes) {
  ++turn_;
  held_ = false;
  timer_.cancel();
  out_ = std::move(bytes);
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
  hold_bytes(0);
  owner_.closed(shared_from_this());
}

}  // namespace gradwire::store_internal
