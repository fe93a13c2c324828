// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The peers of a rank that is a process: reached over sockets, watched through pidfds.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gradwire/backend/shared/world_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::shm {

// One peer.
struct Peer {
  UniqueFd process;  // pidfd: readable when the process has ended
  int pid = 0;
};

class ShmWorld final : public shared::World {
 public:
  // `sockets`: on rank 0 one to each other rank (index = rank), elsewhere one, to rank 0. `peers` by rank; this rank's
  // own entry is not looked at.
  ShmWorld(int rank, int size, std::vector<UniqueFd> sockets, std::vector<Peer> peers, bool may_spin);

  bool shares_all_memory() const noexcept override { return false; }
  // Rank 0 makes the file and sends it to the others; every rank takes the pages of its own part, so that they lie near
  // it.
  shared::Region share_region(std::uint64_t key, std::size_t stride, Deadline deadline,
                              const std::function<void()>& check) override;
  bool is_gone(int peer) const noexcept override;
  int process_of(int peer) const noexcept override;
  std::string describe_peer(int peer) const override;

 private:
  struct Offer {  // what rank 0 sent: memory, or why there is none
    UniqueFd fd;
    std::string refusal;
  };
  Offer make_and_send(std::uint64_t key, std::size_t bytes, Deadline deadline, const std::function<void()>& check);
  [[noreturn]] void throw_absent(int peer, const std::function<void()>& check) const;
  Offer receive(std::uint64_t key, Deadline deadline, const std::function<void()>& check);

  std::vector<UniqueFd> sockets_;
  std::vector<Peer> peers_;
  Mutex mutex_;
  std::map<std::uint64_t, Offer> early_ GRADWIRE_GUARDED_BY(mutex_);  // received while another thread's was waited for
};

// Maps a shared file as a region. Throws ResourceError.
shared::Region map_region(int fd, std::size_t stride, int size);

}  // namespace gradwire::shm
