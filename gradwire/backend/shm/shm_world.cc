// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shm/shm_world_internal.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/backend/shm/descriptor_socket_internal.h"
#include "gradwire/backend/shm/memory_file_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::shm {
namespace {

constexpr Milliseconds kWatchSlice{20};

std::string pack(std::uint64_t key, const std::string& refusal) {
  std::string bytes(sizeof(key), '\0');
  std::memcpy(bytes.data(), &key, sizeof(key));
  return bytes + refusal;
}

}  // namespace

shared::Region map_region(int fd, std::size_t stride, int size) {
  auto mapping = std::make_shared<Mapping>(Mapping::of_file(fd, stride * static_cast<std::size_t>(size)));
  // Huge pages where the administrator allows them for shared memory; elsewhere this changes nothing.
  ::madvise(mapping->data(), mapping->bytes(), MADV_HUGEPAGE);
  return {std::shared_ptr<std::byte>(mapping, mapping->data()), stride};
}

ShmWorld::ShmWorld(int rank, int size, std::vector<UniqueFd> sockets, std::vector<Peer> peers, bool may_spin)
    : World(rank, size), sockets_(std::move(sockets)), peers_(std::move(peers)) {
  set_may_spin(may_spin);
}

shared::Region ShmWorld::share_region(std::uint64_t key, std::size_t stride, Deadline deadline,
                                      const std::function<void()>& check) {
  const std::size_t bytes = stride * static_cast<std::size_t>(size());
  const Offer offer = rank() == 0 ? make_and_send(key, bytes, deadline, check) : receive(key, deadline, check);
  if (!offer.refusal.empty()) throw ResourceError(offer.refusal);
  if (const std::string why = why_not_mapped(offer.fd.get(), bytes); !why.empty())
    throw PeerError(concat("rank 0 (", describe_peer(0), ") sent memory that cannot be used: ", why), {0});
  reserve_pages(offer.fd.get(), static_cast<std::size_t>(rank()) * stride, stride);
  return map_region(offer.fd.get(), stride, size());
}

ShmWorld::Offer ShmWorld::make_and_send(std::uint64_t key, std::size_t bytes, Deadline deadline,
                                        const std::function<void()>& check) {
  Offer offer;
  try {
    offer.fd = make_memory_file(bytes);
  } catch (const ResourceError& error) {
    offer.refusal = error.what();
  }
  const std::string packet = pack(key, offer.refusal);
  const int fd = offer.fd.get();
  const std::span<const int> fds(&fd, offer.fd ? 1 : 0);
  for (int peer = 1; peer < size(); ++peer) {
    // A forked child may hold a dead rank's end of the socket, which is not closed then.
    const auto look = [&] {
      if (is_gone(peer)) throw_absent(peer, check);
      check();
    };
    switch (send_packet(sockets_[static_cast<std::size_t>(peer)].get(), packet, fds, deadline, look)) {
      case Sent::sent:
        break;
      case Sent::closed:
        throw_absent(peer, check);
      case Sent::late:
        throw TimeoutError(concat("the deadline passed while rank ", peer, " took no memory"), {peer});
    }
  }
  return offer;
}

ShmWorld::Offer ShmWorld::receive(std::uint64_t key, Deadline deadline, const std::function<void()>& check) {
  for (Received received = Received::nothing;;) {
    // Asked before the packets are read: what rank 0 sent before its death counts. A forked child of rank 0 may hold
    // the other end of the socket, which is not closed then.
    const bool gone = is_gone(0);
    {
      const MutexLock lock(mutex_);
      if (const auto found = early_.find(key); found != early_.end()) {
        Offer offer = std::move(found->second);
        early_.erase(found);
        return offer;
      }
      Packet packet;
      received = receive_packet(sockets_[0].get(), packet, kWatchSlice);
      if (received == Received::packet && packet.bytes.size() >= sizeof(key)) {
        std::uint64_t sent = 0;
        std::memcpy(&sent, packet.bytes.data(), sizeof(sent));
        Offer& offer = early_[sent];
        offer.refusal = packet.lost.empty() ? packet.bytes.substr(sizeof(sent)) : packet.lost;
        if (!packet.fds.empty()) offer.fd = std::move(packet.fds.front());
        continue;
      }
    }
    if (received == Received::closed || (gone && received == Received::nothing)) throw_absent(0, check);
    check();
    throw_if_interrupted("allocate");
    if (deadline.expired()) throw TimeoutError("the deadline passed while waiting for rank 0 to share memory", {0});
  }
}

// A rank closes its socket when it leaves, because it has heard of a death maybe, or at its own death. A process that
// dies closes its files before the kernel says that it is dead, so no rank can tell the two apart: both are named.
void ShmWorld::throw_absent(int peer, const std::function<void()>& check) const {
  check();  // what it said itself comes first
  std::vector<int> absent = gone();
  std::vector<std::string> words;
  for (const int rank : absent) words.push_back(concat("rank ", rank, " (", describe_peer(rank), ") died"));
  if (std::find(absent.begin(), absent.end(), peer) == absent.end()) {
    absent.push_back(peer);
    words.push_back(concat("rank ", peer, " (", describe_peer(peer), ") left or died"));
  }
  throw PeerError(concat(join(words, " and "), " before all ranks had the memory that rank 0 shares"), absent);
}

bool ShmWorld::is_gone(int peer) const noexcept {
  if (peer == rank()) return false;
  pollfd entry{peers_[static_cast<std::size_t>(peer)].process.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
}

int ShmWorld::process_of(int peer) const noexcept {
  return peer == rank() ? ::getpid() : peers_[static_cast<std::size_t>(peer)].pid;
}

std::string ShmWorld::describe_peer(int peer) const { return concat("process ", process_of(peer)); }

}  // namespace gradwire::shm
