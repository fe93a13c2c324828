// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous of backend shm.
//
//   rank 0                                          others
//   listens on an abstract socket
//   store["shm/root"] = host, address, version  ->  read it; must be the same host
//                                               <-  connect: hello {rank, size, processors} + pidfd
//   makes the memory
//   to each: welcome {sizes, pids} + memory, pidfds ->  map it
//
// A rank that fails on the way closes its socket, so that rank 0 learns at once and says so to the rest.
#include "gradwire/backend/shm/shm_backend.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/shared/shared_backend_internal.h"
#include "gradwire/backend/shm/descriptor_socket_internal.h"
#include "gradwire/backend/shm/memory_file_internal.h"
#include "gradwire/backend/shm/shm_world_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire {
namespace {

using shm::Packet;
using shm::Peer;
using shm::Received;

constexpr std::uint32_t kMagic = 0x31575247;  // "GRW1": changes with the layout of shared memory
constexpr Milliseconds kSlice{50};
constexpr Milliseconds kVerdictPatience{2000};

struct Hello {
  std::uint32_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  cpu_set_t processors = {};
};

// How rank 0's part ended, so that the others throw the same.
enum class Outcome : std::uint32_t { ok, peer, timeout, mismatch, resource };

struct Welcome {
  std::uint32_t magic = kMagic;
  Outcome outcome = Outcome::ok;  // any other: a text follows that says why
  std::uint64_t culprits = 0;     // a bit a rank
  std::uint64_t stride = 0;
  std::uint32_t may_spin = 0;
  std::array<std::int32_t, kMaxWorldSize> pids = {};
};

template <class T>
std::string to_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <class T>
bool from_bytes(const std::string& bytes, T& value) {
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value.magic == kMagic;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
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

// What the members of one rendezvous gather.
struct Members {
  std::vector<UniqueFd> sockets;
  std::vector<Peer> peers;
  bool may_spin = false;
  shared::Region region;
};

class Root {
 public:
  Root(const BackendOptions& options, Deadline deadline) : options_(options), deadline_(deadline) {
    members_.sockets.resize(static_cast<std::size_t>(options.size));
    members_.peers.resize(static_cast<std::size_t>(options.size));
    members_.peers[0] = {open_own_pidfd(), ::getpid()};
    processors_ = make_hello(0).processors;
  }

  Members gather() {
    std::string address;
    const UniqueFd listener = shm::listen_on_abstract_address(address);
    options_.store->set("shm/root", concat(boot_id(), " ", address));
    try {
      while (!missing().empty()) {
        if (auto socket = shm::accept_own_user(listener.get(), kSlice)) greet(std::move(*socket));
        look_for_trouble();
      }
      welcome_all();
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
    return std::move(members_);
  }

 private:
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!members_.sockets[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  void greet(UniqueFd socket) {
    constexpr Milliseconds kPatience{1000};
    Packet packet;
    Hello hello;
    // Whoever connects says its hello at once; anything else is turned away and changes nothing.
    if (shm::receive_packet(socket.get(), packet, kPatience) != Received::packet || !from_bytes(packet.bytes, hello) ||
        packet.fds.size() != 1 || hello.rank < 1 || hello.rank >= options_.size ||
        members_.sockets[static_cast<std::size_t>(hello.rank)]) {
      return;
    }
    const auto index = static_cast<std::size_t>(hello.rank);
    members_.sockets[index] = std::move(socket);
    members_.peers[index] = {std::move(packet.fds.front()), hello.pid};
    CPU_OR(&processors_, &processors_, &hello.processors);
  }

  void look_for_trouble() const {
    rendezvous::throw_if_failed(*options_.store);
    throw_if_interrupted("rendezvous");
    for (int rank = 1; rank < options_.size; ++rank) {
      const UniqueFd& socket = members_.sockets[static_cast<std::size_t>(rank)];
      Packet packet;
      if (socket && shm::receive_packet(socket.get(), packet, Milliseconds(0)) == Received::closed) {
        throw PeerError(
            concat("rendezvous: rank ", rank, " (process ", members_.peers[static_cast<std::size_t>(rank)].pid,
                   ") ended before all ranks were there"),
            {rank});
      }
    }
    if (deadline_.expired()) {
      throw TimeoutError(concat("rendezvous: the deadline passed while waiting for ", name_ranks(missing())),
                         missing());
    }
  }

  void welcome_all() {
    Welcome welcome;
    welcome.stride = shared::rendezvous_stride(options_.size);
    members_.may_spin = CPU_COUNT(&processors_) >= options_.size;
    welcome.may_spin = members_.may_spin ? 1 : 0;
    const std::size_t bytes = welcome.stride * static_cast<std::size_t>(options_.size);
    const UniqueFd memory = shm::make_memory_file(bytes);
    shm::reserve_pages(memory.get(), 0, bytes);
    members_.region = shm::map_region(memory.get(), welcome.stride, options_.size);
    std::vector<int> fds{memory.get()};
    for (std::size_t i = 0; i < members_.peers.size(); ++i) {
      fds.push_back(members_.peers[i].process.get());
      welcome.pids[i] = members_.peers[i].pid;
    }
    for (std::size_t i = 1; i < members_.sockets.size(); ++i) {
      if (!shm::send_packet(members_.sockets[i].get(), to_bytes(welcome), fds)) {
        throw PeerError(
            concat("rendezvous: rank ", i, " (process ", members_.peers[i].pid, ") ended before it was welcomed"),
            {static_cast<int>(i)});
      }
    }
  }

  void refuse_all(const Error& error) const {
    Welcome refusal;
    refusal.outcome = Outcome::mismatch;
    std::vector<int> culprits;
    if (const auto* peer = dynamic_cast<const PeerError*>(&error)) {
      refusal.outcome = Outcome::peer;
      culprits = peer->peers();
    } else if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
      refusal.outcome = Outcome::timeout;
      culprits = timeout->peers();
    } else if (dynamic_cast<const ResourceError*>(&error) != nullptr) {
      refusal.outcome = Outcome::resource;
    }
    for (const int rank : culprits) refusal.culprits |= std::uint64_t{1} << static_cast<unsigned>(rank);
    for (const UniqueFd& socket : members_.sockets) {
      if (socket) shm::send_packet(socket.get(), to_bytes(refusal) + error.what(), {});
    }
    rendezvous::announce_failure(*options_.store, error.what());
  }

  const BackendOptions& options_;
  const Deadline deadline_;
  Members members_;
  cpu_set_t processors_ = {};
};

[[noreturn]] void throw_refusal(int rank, const Welcome& welcome, const std::string& reason) {
  const std::string message = concat("rendezvous on rank ", rank, ": rank 0 gave up: ", reason);
  std::vector<int> culprits;
  for (int other = 0; other < kMaxWorldSize; ++other) {
    if ((welcome.culprits >> static_cast<unsigned>(other) & 1U) != 0) culprits.push_back(other);
  }
  switch (welcome.outcome) {
    case Outcome::timeout:
      throw TimeoutError(message, culprits);
    case Outcome::mismatch:
      throw MismatchError(message);
    case Outcome::resource:
      throw ResourceError(message);
    default:
      throw PeerError(message, culprits);
  }
}

Members join(const BackendOptions& options, Deadline deadline) {
  const std::string root = rendezvous::await_key(*options.store, "shm/root", "rank 0", deadline);
  std::istringstream words(root);
  std::string host;
  std::string address;
  words >> host >> address;
  if (host != boot_id()) {
    throw InvalidArgument(
        concat("backend shm on rank ", options.rank, ": rank 0 runs on another host; shm is for one host"));
  }
  Members members;
  members.sockets.push_back(shm::connect_to_abstract_address(address));
  const UniqueFd own = open_own_pidfd();
  const int fd = own.get();
  const int socket = members.sockets[0].get();
  Packet packet;
  Received received =
      shm::send_packet(socket, to_bytes(make_hello(options.rank)), {&fd, 1}) ? Received::nothing : Received::closed;
  constexpr Milliseconds kYear = std::chrono::hours(24 * 365);
  const Deadline verdict = Deadline::after(std::min(deadline.remaining(), kYear) + kVerdictPatience);
  while (received == Received::nothing) {
    received = shm::receive_packet(socket, packet, kSlice);
    throw_if_interrupted("rendezvous");
    // Rank 0 gives up at the deadline too, and then says who is missing: leave it the time to.
    if (received == Received::nothing && verdict.expired()) {
      throw TimeoutError(
          concat("rendezvous on rank ", options.rank, ": the deadline passed while waiting for the other ranks"));
    }
  }
  Welcome welcome;
  if (received == Received::closed || !from_bytes(packet.bytes, welcome)) {
    throw PeerError(concat("rendezvous on rank ", options.rank, ": rank 0 ended or turned this rank away"), {0});
  }
  if (welcome.outcome != Outcome::ok) throw_refusal(options.rank, welcome, packet.bytes.substr(sizeof(welcome)));
  if (packet.fds.size() != static_cast<std::size_t>(options.size) + 1) {
    throw InternalError("rendezvous: the welcome of rank 0 came with the wrong number of descriptors");
  }
  members.may_spin = welcome.may_spin != 0;
  members.region = shm::map_region(packet.fds[0].get(), welcome.stride, options.size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(options.size); ++i) {
    members.peers.push_back({std::move(packet.fds[i + 1]), welcome.pids[i]});
  }
  return members;
}

}  // namespace

std::unique_ptr<Backend> make_shm_backend(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  Members members = options.rank == 0 ? Root(options, deadline).gather() : join(options, deadline);
  trace::point("rendezvous.connected", options.rank);
  auto world = std::make_shared<shm::ShmWorld>(options.rank, options.size, std::move(members.sockets),
                                               std::move(members.peers), members.may_spin);
  return std::make_unique<shared::SharedBackend>("shm", std::move(world), members.region, options.timeout);
}

}  // namespace gradwire
