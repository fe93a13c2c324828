// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Frames that have come and wait until the sink takes them.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <vector>

#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::ucx {

// Those of one peer, in their order. Used by one thread at a time.
class FrameQueue {
 public:
  bool empty() const noexcept { return frames_.empty(); }
  std::size_t size() const noexcept { return frames_.size(); }
  // Copies the payload. Throws std::bad_alloc, without effect.
  void add(const messages::Frame& frame, std::span<const std::byte> payload) {
    frames_.push_back({frame, {payload.begin(), payload.end()}});
  }
  // Returns whether there was a frame and the sink took it.
  bool hand_on_first(int peer, messages::FrameSink& sink) {
    if (frames_.empty() || !sink.on_frame(peer, frames_.front().frame, {frames_.front().payload, {}})) return false;
    frames_.pop_front();
    return true;
  }

 private:
  struct Held {
    messages::Frame frame;
    std::vector<std::byte> payload;
  };
  std::list<Held> frames_;
};

// Those of all peers. Used by one thread at a time.
class HeldFrames {
 public:
  explicit HeldFrames(std::size_t peers) : queues_(peers) {}

  bool empty() const noexcept { return held_ == 0; }
  bool has_of(std::size_t peer) const noexcept { return !queues_[peer].empty(); }
  // As FrameQueue's.
  void add(std::size_t peer, const messages::Frame& frame, std::span<const std::byte> payload) {
    queues_[peer].add(frame, payload);
    ++held_;
  }
  // Hands on each peer's frames until the sink refuses one. Returns whether it took any.
  bool hand_on(messages::FrameSink& sink) {
    if (empty()) return false;
    const std::size_t held_before = held_;
    for (std::size_t peer = 0; peer < queues_.size(); ++peer) {
      while (queues_[peer].hand_on_first(static_cast<int>(peer), sink)) --held_;
    }
    return held_ != held_before;
  }

 private:
  std::vector<FrameQueue> queues_;  // by peer
  std::size_t held_ = 0;            // frames
};

}  // namespace gradwire::ucx
