// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shm/descriptor_socket_internal.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "gradwire/backend/backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

constexpr std::size_t kMaxPacket = 8192;
constexpr std::size_t kMaxFds = kMaxWorldSize + 1;

socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  name.copy(address.sun_path + 1, length);  // a leading zero byte makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw ResourceError(concat("cannot make a socket: ", std::strerror(errno)));
  return fd;
}

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw ResourceError(concat("cannot get random bytes: ", std::strerror(errno)));
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = "gradwire-";
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

bool wait_readable(int fd, Milliseconds wait) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(std::clamp<long>(wait.count(), 0, 1000))) > 0;
}

}  // namespace

UniqueFd listen_on_abstract_address(std::string& name) {
  name = random_name();
  UniqueFd fd = make_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kMaxWorldSize) != 0) {
    throw ResourceError(concat("cannot listen on a local socket: ", std::strerror(errno)));
  }
  return fd;
}

UniqueFd connect_to_abstract_address(const std::string& name) {
  UniqueFd fd = make_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, name);
  int result = -1;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw InvalidArgument(
        concat("backend shm cannot reach rank 0 on this host: ", std::strerror(errno),
               "; its ranks must run on one host and in one network namespace, and rank 0 must be alive"));
  }
  return fd;
}

std::optional<UniqueFd> accept_own_user(int listener, Milliseconds wait) {
  if (!wait_readable(listener, wait)) return std::nullopt;
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return std::nullopt;
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != ::geteuid())
    return std::nullopt;
  return fd;
}

bool send_packet(int socket, std::string_view bytes, std::span<const int> fds) {
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
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

Received receive_packet(int socket, Packet& packet, Milliseconds wait) {
  if (!wait_readable(socket, wait)) return Received::nothing;
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
  packet.fds.clear();
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got > 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  if (got <= 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return Received::closed;
  packet.bytes.assign(buffer.data(), static_cast<std::size_t>(got));
  return Received::packet;
}

}  // namespace gradwire::shm
