// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of the rendezvous of backend shm.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "gradwire/backend/descriptor_limit_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/backend/shared/shared_backend_internal.h"
#include "gradwire/backend/shm/meeting_internal.h"
#include "gradwire/backend/shm/memory_file_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

class Root {
 public:
  Root(const BackendOptions& options, Deadline deadline) : options_(options), deadline_(deadline) {
    members_.sockets.resize(static_cast<std::size_t>(options.size));
    members_.peers.resize(static_cast<std::size_t>(options.size));
  }

  Members gather() {
    UniqueFd listener;
    try {
      internal::require_descriptors(0, options_.size, descriptors_needed(0, options_.size));
      members_.peers[0] = {open_own_pidfd(), ::getpid()};
      processors_ = make_hello(0).processors;
      RootAddress address = address_here();
      listener = listen_on_abstract_address(address.name);
      options_.store->set("shm/root", to_text(address));
      while (!missing().empty()) {
        await_news(listener.get());
        if (auto socket = accept_own_user(listener.get(), Milliseconds(0))) arrivals_.push_back(std::move(*socket));
        if (arrivals_.size() > kMaxRanksOfHost) arrivals_.erase(arrivals_.begin());
        std::erase_if(arrivals_, [&](UniqueFd& socket) { return greet(socket); });
        look_for_trouble();
      }
      arrivals_.clear();
      welcome_all();
    } catch (const std::exception& error) {
      // While this rank still listens: whoever finds nobody listening looks for the reason in the store.
      tell_all(rendezvous::encode_failure(0, error));
      rendezvous::announce_failure(*options_.store, 0, error);
      throw;
    }
    return std::move(members_);
  }

 private:
  int socket_of(int rank) const { return members_.sockets[static_cast<std::size_t>(rank)].get(); }
  const Peer& peer(int rank) const { return members_.peers[static_cast<std::size_t>(rank)]; }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (socket_of(rank) < 0) ranks.push_back(rank);
    }
    return ranks;
  }

  // Waits until a process connects or an arrival says something, and for kSlice at most.
  void await_news(int listener) const {
    std::vector<pollfd> polled{{listener, POLLIN, 0}};
    for (const UniqueFd& socket : arrivals_) polled.push_back({socket.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), static_cast<int>(std::min(kSlice, next_look_.remaining()).count()));
  }

  // Whether nothing is left to do for the arrival: it is a rank, is gone, or said anything but a hello, which changes
  // nothing. A process may stand still before its hello, so the others are not kept waiting for it.
  bool greet(UniqueFd& socket) {
    Packet packet;
    Hello hello;
    const Received received = receive_packet(socket.get(), packet, Milliseconds(0));
    if (!packet.lost.empty()) throw ResourceError(packet.lost);
    if (received == Received::nothing) return false;
    if (received != Received::packet || !from_bytes(packet.bytes, hello) || packet.fds.size() != 1 || hello.rank < 1 ||
        hello.rank >= options_.size || socket_of(hello.rank) >= 0) {
      return true;
    }
    const auto index = static_cast<std::size_t>(hello.rank);
    members_.sockets[index] = std::move(socket);
    members_.peers[index] = {std::move(packet.fds.front()), hello.pid};
    CPU_OR(&processors_, &processors_, &hello.processors);
    return true;
  }

  // Throws where a rank has failed or died, this thread is interrupted or the deadline has passed. `awaited` is the
  // rank whose next packet somebody else reads.
  void look_for_trouble(int awaited = 0) {
    rendezvous::throw_if_failed(*options_.store);
    throw_if_interrupted("rendezvous");
    for (int rank = 1; rank < options_.size; ++rank) {
      Packet packet;
      if (rank != awaited && socket_of(rank) >= 0) receive_from(rank, packet, Milliseconds(0));
    }
    const std::vector<int> missing = this->missing();
    if (next_look_.expired()) {
      next_look_ = Deadline::after(look_pause_.next());
      const std::vector<int> dead = rendezvous::dead_ranks(*options_.store, missing);
      if (!dead.empty()) rendezvous::throw_dead(*options_.store, dead);
    }
    if (deadline_.expired() && !missing.empty()) {
      throw TimeoutError(concat("rendezvous failed: the deadline passed while waiting for ", name_ranks(missing)),
                         missing);
    }
  }

  // Whether a packet came from `rank` within `wait`. Throws when the rank told of a failure, or is gone.
  bool receive_from(int rank, Packet& packet, Milliseconds wait) const {
    const Received received = receive_packet(socket_of(rank), packet, wait);
    if (received == Received::packet) throw_if_failure(packet.bytes);
    if (received == Received::closed) throw_gone(rank);
    return received == Received::packet;
  }

  [[noreturn]] void throw_gone(int rank) const {
    rendezvous::throw_if_failed(*options_.store);  // a rank that hears of a failure ends, too
    throw PeerError(
        concat("rendezvous failed: rank ", rank, " (process ", peer(rank).pid, ") ended before all ranks were there"),
        {rank});
  }

  void welcome_all() {
    Welcome welcome;
    welcome.stride = shared::rendezvous_stride(options_.size);
    members_.may_spin = CPU_COUNT(&processors_) >= options_.size;
    welcome.may_spin = members_.may_spin ? 1 : 0;
    const std::size_t bytes = welcome.stride * static_cast<std::size_t>(options_.size);
    const UniqueFd memory = make_memory_file(bytes);
    reserve_pages(memory.get(), 0, bytes);
    members_.region = map_region(memory.get(), welcome.stride, options_.size);
    std::vector<int> fds{memory.get()};
    for (int rank = 0; rank < options_.size; ++rank) {
      fds.push_back(peer(rank).process.get());
      welcome.pids[static_cast<std::size_t>(rank)] = peer(rank).pid;
    }
    for (int rank = 1; rank < options_.size; ++rank) admit(rank, to_bytes(welcome), fds);
    // A rank that has died since is found by the others where they meet in the memory.
    for (int rank = 1; rank < options_.size; ++rank) {
      send_packet(socket_of(rank), to_bytes(Go()), {}, deadline_);
    }
  }

  // Sends the welcome and waits until `rank` has taken what came with it.
  void admit(int rank, const std::string& packet, const std::vector<int>& fds) {
    const Sent sent = send_packet(socket_of(rank), packet, fds, deadline_, [this] { look_for_trouble(); });
    if (sent == Sent::closed) throw_gone(rank);
    Packet answer;
    Ready ready;
    while (sent == Sent::late || !receive_from(rank, answer, kSlice)) {
      if (deadline_.expired()) {
        throw TimeoutError(
            concat("rendezvous failed: the deadline passed while rank ", rank, " mapped the shared memory"), {rank});
      }
      look_for_trouble(rank);
    }
    if (!from_bytes(answer.bytes, ready))
      throw MismatchError(concat("rendezvous failed: rank ", rank, " speaks another version of the protocol"));
  }

  void tell_all(const std::string& record) const noexcept {
    for (const UniqueFd& socket : members_.sockets) {
      try {
        if (socket) send_packet(socket.get(), failure_packet(record), {}, Deadline::after(Milliseconds(0)));
      } catch (const std::exception&) {  // that rank finds the reason in the store
      }
    }
  }

  const BackendOptions& options_;
  const Deadline deadline_;
  rendezvous::LookPause look_pause_;
  Deadline next_look_ = Deadline::after(Milliseconds(0));
  Members members_;
  std::vector<UniqueFd> arrivals_;  // of processes that have connected and have not said who they are
  cpu_set_t processors_ = {};
};

}  // namespace

Members meet_as_root(const BackendOptions& options, Deadline deadline) { return Root(options, deadline).gather(); }

}  // namespace gradwire::shm
