// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What both sides of the rendezvous of backend shm need.
#include "gradwire/backend/shm/meeting_internal.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {

std::size_t descriptors_needed(int rank, int size) noexcept {
  const auto ranks = static_cast<std::size_t>(size);
  // A pidfd of every rank, the memory, what the store opens for a moment; and a socket to rank 0, which itself has one
  // to every other rank and the one that it listens on.
  constexpr std::size_t kBeside = 3;
  return ranks + kBeside + (rank == 0 ? ranks : 1);
}

std::string failure_packet(const std::string& record) {
  // A packet has a size that the other side can take.
  constexpr std::size_t kLongest = 4096;
  return to_bytes(Header{kMagic, PacketKind::failure}) + record.substr(0, kLongest);
}

void throw_if_failure(const std::string& bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.kind != PacketKind::failure) return;
  rendezvous::throw_failure(bytes.substr(sizeof(header)));
}

RootAddress address_here() { return {.host = boot_id(), .network = network_namespace(), .name = {}}; }

std::string to_text(const RootAddress& address) {
  return concat(address.host, "\n", address.network, "\n", address.name);
}

RootAddress address_from(const std::string& text) {
  std::istringstream lines(text);
  RootAddress address;
  std::getline(lines, address.host);
  std::getline(lines, address.network);
  std::getline(lines, address.name);
  return address;
}

UniqueFd open_own_pidfd() {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd) {
    throw ResourceError(
        concat("cannot open a pidfd: ", std::strerror(errno), "; backend shm needs Linux 5.3 or newer"));
  }
  return fd;
}

Hello make_hello(int rank) {
  Hello hello;
  hello.rank = rank;
  hello.pid = ::getpid();
  CPU_ZERO(&hello.processors);
  ::sched_getaffinity(0, sizeof(hello.processors), &hello.processors);
  return hello;
}

}  // namespace gradwire::shm
