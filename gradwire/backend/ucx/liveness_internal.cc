// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/liveness_internal.h"

#include <numeric>
#include <utility>

namespace gradwire::ucx {

namespace {

std::vector<std::size_t> all_of(std::size_t peers) {
  std::vector<std::size_t> all(peers);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

}  // namespace

Liveness::Liveness(std::size_t peers, Milliseconds silence, Clock::time_point now)
    : Liveness(peers, all_of(peers), {silence, silence}, now) {}

Liveness::Liveness(std::size_t peers, std::vector<std::size_t> watched, Times times, Clock::time_point now)
    : silence_(times.silence),
      period_(std::max(times.shortest_silence / 8, Milliseconds(1))),
      last_tick_(now),
      next_tick_(now + period_),
      peers_(peers),
      watched_(std::move(watched)) {
  for (const std::size_t index : watched_) peers_[index] = {.is_watched = true, .last_heard = now};
}

void Liveness::await(std::size_t peer, Clock::time_point now) {
  Peer& awaited = peers_[peer];
  if (!awaited.is_watched) {
    watched_.push_back(peer);
    awaited = {.is_watched = true, .last_heard = now};
  }
  awaited.watched_until = now + silence_;
}

void Liveness::forget(std::size_t peer) noexcept {
  if (std::exchange(peers_[peer].is_watched, false)) std::erase(watched_, peer);
}

Liveness::Findings Liveness::tick(Clock::time_point now) {
  std::erase_if(watched_, [&](std::size_t index) {
    const bool ends = now >= peers_[index].watched_until;
    if (ends) peers_[index].is_watched = false;
    return ends;
  });
  Findings findings;
  // Three missed ticks mean that this process did not run (SIGSTOP, a suspended machine, no processor to be had): what
  // the peers sent meanwhile may not have been read yet.
  const auto gap = now - last_tick_;
  const auto forgiven = gap > 3 * period_ ? gap : Clock::duration::zero();
  for (const std::size_t index : watched_) {
    Peer& peer = peers_[index];
    peer.last_heard = peer.heard ? now : peer.last_heard + forgiven;
    if (now - peer.last_heard >= silence_) findings.silent.push_back(index);
    if (!peer.wrote) findings.to_beat.push_back(index);
    if (!peer.heard) findings.unheard.push_back(index);
    peer.heard = peer.wrote = false;
  }
  last_tick_ = now;
  next_tick_ = now + period_;
  return findings;
}

}  // namespace gradwire::ucx
