// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which peers have fallen silent: a pulled cable and a stopped host close no connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire::ucx {

// Has no clock: the caller brings the time. Used by one thread at a time.
class Liveness {
 public:
  using Clock = Deadline::Clock;

  struct Times {
    Milliseconds silence;           // a peer is silent when nothing has come of it for so long
    Milliseconds shortest_silence;  // of this rank and of those that it gives signs of life: none finds it silent
  };
  Liveness(std::size_t peers, Milliseconds silence, Clock::time_point now);
  // Looks at the peers `watched` only. The others get no beats, and are never found silent.
  Liveness(std::size_t peers, std::vector<std::size_t> watched, Times times, Clock::time_point now);

  // From now on a peer is silent after `silence`, where that is longer.
  void extend_silence(Milliseconds silence) noexcept { silence_ = std::max(silence_, silence); }

  // Looks at another peer too, from now on until nobody has called this for as long as the silence. Cheap for a peer
  // that is watched.
  void await(std::size_t peer, Clock::time_point now);
  // Looks at the peer no more.
  void forget(std::size_t peer) noexcept;

  // Something came of the peer, or was written to it. Cheap: no time is asked for.
  void heard(std::size_t peer) noexcept { peers_[peer].heard = true; }
  void wrote(std::size_t peer) noexcept { peers_[peer].wrote = true; }

  // When tick() has something to do.
  Clock::time_point next_tick() const noexcept { return next_tick_; }

  struct Findings {
    std::vector<std::size_t> silent;
    std::vector<std::size_t> to_beat;  // nothing was written to these of late
    std::vector<std::size_t> unheard;  // nothing has come of these of late
  };
  // Looks at the peers that are watched. When this process itself has stood still for a while, the peers are forgiven
  // that time.
  Findings tick(Clock::time_point now);

 private:
  struct Peer {
    bool heard = false;
    bool wrote = false;
    bool is_watched = false;
    Clock::time_point last_heard;
    Clock::time_point watched_until = Clock::time_point::max();
  };
  Milliseconds silence_;
  const Milliseconds period_;
  Clock::time_point last_tick_;
  Clock::time_point next_tick_;
  std::vector<Peer> peers_;
  std::vector<std::size_t> watched_;
};

}  // namespace gradwire::ucx
