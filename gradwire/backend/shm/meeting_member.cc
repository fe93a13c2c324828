// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The side of all ranks but rank 0 in the rendezvous of backend shm.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "gradwire/backend/descriptor_limit_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/shm/meeting_internal.h"
#include "gradwire/backend/shm/memory_file_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

// Rank 0 gives up at the deadline too, and then says who is missing: ranks leave it the time to.
constexpr Milliseconds kVerdictPatience{2000};

class Member {
 public:
  Member(const BackendOptions& options, Deadline deadline) : options_(options), deadline_(deadline) {
    constexpr Milliseconds kYear = std::chrono::hours(24 * 365);
    verdict_ = Deadline::after(std::min(deadline.remaining(), kYear) + kVerdictPatience);
  }

  Members meet() {
    try {
      internal::require_descriptors(options_.rank, options_.size, descriptors_needed(options_.rank, options_.size));
      connect();
      say_hello();
      Packet packet;
      Welcome welcome;
      await(packet, welcome);
      take(welcome, packet);
      Go go;
      send(to_bytes(Ready()), {});
      await(packet, go);
    } catch (const std::exception& error) {
      tell_root(error);
      throw;
    }
    members_.sockets.push_back(std::move(socket_));
    return std::move(members_);
  }

 private:
  void connect() {
    const RootAddress root = address_from(rendezvous::await_key(*options_.store, "shm/root", 0, deadline_));
    const RootAddress here = address_here();
    if (root.host != here.host) refuse("rank 0 runs on another host; shm is for one host");
    if (!here.network.empty() && !root.network.empty() && root.network != here.network)
      refuse("rank 0 runs in another network namespace, where it cannot be reached");
    Connection connection;
    do {
      connection = connect_to_abstract_address(root.name, kSlice);
      rendezvous::throw_if_failed(*options_.store);
      throw_if_interrupted("rendezvous");
      if (!connection.socket && !connection.busy) throw_root_gone();
      if (!connection.socket && deadline_.expired())
        throw TimeoutError("rendezvous failed: the deadline passed while rank 0 accepted no connection", {0});
    } while (!connection.socket);
    // The name is free for anybody once rank 0 has gone.
    if (connection.listener_user != ::geteuid()) {
      refuse(concat("user ", connection.listener_user, " listens where rank 0 should, and this rank runs as user ",
                    ::geteuid(), "; all ranks must run as one user"));
    }
    socket_ = std::move(connection.socket);
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(concat("rendezvous failed: backend shm on rank ", options_.rank, ": ", why));
  }

  // Rank 0 died or gave up; where it gave up, it said why before it closed its sockets.
  [[noreturn]] void throw_root_gone() const {
    rendezvous::throw_if_failed(*options_.store);
    const std::vector<int> root{0};
    if (!rendezvous::dead_ranks(*options_.store, root).empty()) rendezvous::throw_dead(*options_.store, root);
    throw PeerError("rendezvous failed: rank 0 ended before all ranks were there", root);
  }

  void send(const std::string& packet, std::span<const int> fds) const {
    const auto check = [] { throw_if_interrupted("rendezvous"); };
    const Sent sent = send_packet(socket_.get(), packet, fds, deadline_, check);
    if (sent == Sent::late) throw TimeoutError("rendezvous failed: the deadline passed while rank 0 took nothing", {0});
    // A closed socket may still hold what rank 0 said before: whoever receives next finds out.
  }

  void say_hello() const {
    const UniqueFd own = open_own_pidfd();
    const int fd = own.get();
    send(to_bytes(make_hello(options_.rank)), {&fd, 1});
  }

  // Waits for rank 0's next packet, which is to be a T.
  template <class T>
  void await(Packet& packet, T& expected) const {
    Received received = Received::nothing;
    while (received == Received::nothing) {
      received = receive_packet(socket_.get(), packet, kSlice);
      throw_if_interrupted("rendezvous");
      if (received == Received::nothing && verdict_.expired()) {
        throw TimeoutError(
            concat("rendezvous failed: the deadline passed while rank ", options_.rank, " waited for the other ranks"));
      }
    }
    if (received == Received::closed) throw_root_gone();
    throw_if_failure(packet.bytes);
    if (!from_bytes(packet.bytes, expected))
      throw MismatchError("rendezvous failed: rank 0 speaks another version of the protocol");
  }

  void take(const Welcome& welcome, Packet& packet) {
    const auto ranks = static_cast<std::size_t>(options_.size);
    if (!packet.lost.empty()) throw ResourceError(packet.lost);
    if (packet.fds.size() != ranks + 1)
      throw InternalError("rendezvous: the welcome of rank 0 came with the wrong number of descriptors");
    const int memory = packet.fds[0].get();
    if (const std::string why = why_not_mapped(memory, welcome.stride * ranks); !why.empty())
      throw PeerError(concat("rendezvous failed: rank 0 sent memory that cannot be used: ", why), {0});
    members_.may_spin = welcome.may_spin != 0;
    members_.region = map_region(memory, welcome.stride, options_.size);
    for (std::size_t i = 0; i < ranks; ++i) members_.peers.push_back({std::move(packet.fds[i + 1]), welcome.pids[i]});
  }

  void tell_root(const std::exception& error) const noexcept {
    try {
      const std::string record = rendezvous::encode_failure(options_.rank, error);
      if (socket_) send_packet(socket_.get(), failure_packet(record), {}, Deadline::after(Milliseconds(0)));
    } catch (const std::exception&) {  // rank 0 finds it in the store
    }
    rendezvous::announce_failure(*options_.store, options_.rank, error);
  }

  const BackendOptions& options_;
  const Deadline deadline_;
  Deadline verdict_ = Deadline::never();
  UniqueFd socket_;
  Members members_;
};

}  // namespace

Members meet_root(const BackendOptions& options, Deadline deadline) { return Member(options, deadline).meet(); }

}  // namespace gradwire::shm
