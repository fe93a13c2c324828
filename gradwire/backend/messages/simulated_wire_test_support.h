// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A wire between endpoints of one thread: links of limited capacity, from which frames are taken when a test says so.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "gradwire/backend/messages/refused_memory_test_support.h"
#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::messages {

// The links of `size` endpoints.
class SimulatedNet {
 public:
  struct Letter {
    Frame frame;
    std::vector<std::byte> payload;
  };

  SimulatedNet(int size, std::size_t capacity) : size_(size), capacity_(capacity), links_(std::size_t(size) * size) {}

  int size() const noexcept { return size_; }
  std::size_t max_payload() const noexcept { return capacity_ / 2; }
  std::deque<Letter>& link(int from, int to) { return links_[static_cast<std::size_t>(from * size_ + to)]; }

  bool write(int from, int to, const Frame& frame, std::span<const std::byte> payload) {
    const Granted granted;
    std::size_t used = 0;
    for (const Letter& letter : link(from, to)) used += sizeof(Frame) + letter.payload.size();
    if (used + sizeof(Frame) + payload.size() > capacity_) return false;
    link(from, to).push_back({frame, {payload.begin(), payload.end()}});
    return true;
  }

 private:
  int size_;
  std::size_t capacity_;
  std::vector<std::deque<Letter>> links_;
};

class SimulatedWire final : public Wire {
 public:
  SimulatedWire(SimulatedNet& net, int self) : net_(net), self_(self) {}

  // How many frames the next read() takes from each link; without a number, all.
  std::optional<std::size_t> next_read;
  // Empty: all others. Another peer is joined when the first frame goes to it or comes of it.
  std::set<int> partners;

  int size() const noexcept override { return net_.size(); }
  std::size_t max_payload() const noexcept override { return net_.max_payload(); }
  bool is_partner(int peer) const noexcept override {
    return partners.empty() || peer == self_ || partners.contains(peer);
  }
  bool is_joined(int peer) const noexcept override { return is_partner(peer) || joined_.contains(peer); }
  bool write(int peer, const Frame& frame, std::span<const std::byte> payload) override {
    if (!is_partner(peer)) joined_.insert(peer);
    return net_.write(self_, peer, frame, payload);
  }
  bool read(FrameSink& sink) override {
    bool moved = false;
    for (int source = 0; source < size(); ++source) {
      std::deque<SimulatedNet::Letter>& link = net_.link(source, self_);
      for (std::size_t taken = 0; !link.empty() && taken < next_read.value_or(link.size() + taken); ++taken) {
        if (!is_partner(source)) joined_.insert(source);
        if (!sink.on_frame(source, link.front().frame, split(link.front().payload))) break;
        link.pop_front();
        moved = true;
      }
    }
    return moved;
  }
  void flush() override {}
  std::uint32_t bell() const noexcept override { return 0; }
  void sleep(std::uint32_t, std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}

 private:
  // In two parts, as at the end of a ring.
  static Payload split(const std::vector<std::byte>& payload) {
    const std::span<const std::byte> all(payload);
    return {all.first(all.size() / 3), all.subspan(all.size() / 3)};
  }

  SimulatedNet& net_;
  int self_;
  std::set<int> joined_;
};

}  // namespace gradwire::messages
