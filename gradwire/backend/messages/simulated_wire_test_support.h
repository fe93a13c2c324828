// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A wire between endpoints of one thread: links of limited capacity, from which frames are taken when a test says so,
// and memory that peers read when a test lets them.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
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

  // Messages of so many bytes and more are lent; without a number, none.
  std::optional<std::size_t> least_lent;
  // Whether this endpoint can read a peer's memory.
  std::function<bool(int peer)> may_pull = [](int) { return true; };

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
  std::uint64_t lend(std::span<const std::byte> memory) noexcept override {
    return least_lent && memory.size() >= *least_lent ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  }
  bool pull(int peer, std::uint64_t from, std::span<std::byte> to) noexcept override {
    if (!may_pull(peer)) return false;
    std::memcpy(to.data(), reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from)), to.size());
    return true;
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
