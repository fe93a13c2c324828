// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shm/descriptor_socket_internal.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/descriptor_limit_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

constexpr std::size_t kMaxPacket = 8192;
constexpr std::size_t kMaxFds = kMaxRanksOfHost + 1;

socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  name.copy(address.sun_path + 1, length);  // a leading zero byte makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

[[noreturn]] void throw_errno(const char* what) {
  const int error = errno;
  throw ResourceError(
      concat(what, ": ", std::strerror(error),
             error == EMFILE || error == ETOOMANYREFS ? concat("; ", internal::describe_descriptor_limit()) : ""));
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("cannot make a socket");
  return fd;
}

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("cannot get random bytes");
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = "gradwire-";
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

bool wait_for(int fd, short events, Milliseconds wait) {
  pollfd entry{fd, events, 0};
  return ::poll(&entry, 1, static_cast<int>(std::clamp<long>(wait.count(), 0, 1000))) > 0;
}

// The user at the other end of a connection, as the kernel saw him when it was made.
std::optional<uid_t> user_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

// The descriptors of a message, each with an owner.
std::vector<UniqueFd> take_descriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

UniqueFd listen_on_abstract_address(std::string& name) {
  name = random_name();
  UniqueFd fd = make_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kMaxRanksOfHost) != 0) {
    throw_errno("cannot listen on a local socket");
  }
  return fd;
}

Connection connect_to_abstract_address(const std::string& name, Milliseconds wait) {
  Connection connection;
  UniqueFd fd = make_socket();
  // A full queue holds connect() up: no longer than this.
  const timeval limit{wait.count() / 1000, static_cast<suseconds_t>(wait.count() % 1000 * 1000)};
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0)
    throw_errno("cannot set up a socket");
  sockaddr_un address{};
  const socklen_t length = fill_address(address, name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) throw_errno("cannot connect to a local socket");
    connection.busy = errno != ECONNREFUSED;
    return connection;
  }
  const std::optional<uid_t> user = user_of(fd.get());
  if (!user) throw_errno("cannot ask who listens on a local socket");
  connection.listener_user = *user;
  connection.socket = std::move(fd);
  return connection;
}

std::optional<UniqueFd> accept_own_user(int listener, Milliseconds wait) {
  if (!wait_for(listener, POLLIN, wait)) return std::nullopt;
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  // Out of descriptors: the connection stays in the queue, so asking again would spin.
  if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    throw_errno("cannot accept a rank's connection");
  }
  if (!fd || user_of(fd.get()) != ::geteuid()) return std::nullopt;
  return fd;
}

Sent send_packet(int socket, std::string_view bytes, std::span<const int> fds, Deadline deadline,
                 const std::function<void()>& check) {
  constexpr Milliseconds kSlice{10};
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::sent;
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) return Sent::closed;
    if (error != EAGAIN && error != ETOOMANYREFS) throw_errno("cannot send descriptors to another rank");
    if (deadline.expired() && error == EAGAIN) return Sent::late;
    if (deadline.expired()) throw_errno("cannot send descriptors to another rank");
    // Nothing tells when descriptors in flight have arrived; the end of the other side does end this wait.
    wait_for(socket, error == EAGAIN ? POLLOUT : short{0}, std::min(kSlice, deadline.remaining()));
    if (check) check();
  }
}

Received receive_packet(int socket, Packet& packet, Milliseconds wait) {
  packet = {};
  if (!wait_for(socket, POLLIN, wait)) return Received::nothing;
  std::array<char, kMaxPacket> buffer{};
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing;
  if (got <= 0) return Received::closed;
  packet.fds = take_descriptors(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    packet.fds.clear();  // some without the others are of no use
    packet.lost = concat("no room for the descriptors that another rank sent; ", internal::describe_descriptor_limit());
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) return Received::closed;
  packet.bytes.assign(buffer.data(), static_cast<std::size_t>(got));
  return Received::packet;
}

}  // namespace gradwire::shm
