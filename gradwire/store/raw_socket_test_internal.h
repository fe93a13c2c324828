// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A bare TCP connection, for tests that say to a server what no client would, or play a server that is none.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::store_test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class RawSocket {
 public:
  // Connects to a port of this host. Reading waits 30 s at most.
  static RawSocket connect(std::uint16_t port) {
    RawSocket made(UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    const timeval limit{30, 0};
    ::setsockopt(made.fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const sockaddr_in address = loopback(port);
    if (::connect(made.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect");
    }
    return made;
  }

  // Binds to a port of this host, 0 for any free one, without listening.
  static RawSocket bind(std::uint16_t port, bool reuse_port = false) {
    RawSocket made(UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    const int on = 1;
    if (reuse_port) ::setsockopt(made.fd_.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    const sockaddr_in address = loopback(port);
    if (::bind(made.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot bind");
    }
    return made;
  }

  void listen() { ::listen(fd_.get(), 16); }

  RawSocket accept() { return RawSocket(UniqueFd(::accept(fd_.get(), nullptr, nullptr))); }

  // Whether there is something to accept or receive within `limit`.
  bool is_readable(Milliseconds limit) const {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(limit.count())) > 0;
  }

  std::uint16_t port() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

  // Whether all bytes went out; the other side may have closed already.
  bool send(const std::string& bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }

  // Up to `bytes` bytes; fewer when the other side closed before.
  std::string receive(std::size_t bytes) {
    std::string result(bytes, '\0');
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t n = ::recv(fd_.get(), result.data() + done, bytes - done, 0);
      if (n <= 0) break;
      done += static_cast<std::size_t>(n);
    }
    result.resize(done);
    return result;
  }

  // Reads and drops what comes until the other side closes; false when it did not within 30 s.
  bool is_closed_by_peer() {
    char buffer[4096];
    for (;;) {
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
      if (n < 0) return false;
    }
  }

 private:
  explicit RawSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace gradwire::store_test
