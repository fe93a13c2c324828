// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The receives that were matched with an offer, by the offer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/backend/messages/message_internal.h"

namespace gradwire::messages {

// Receives in chains, linked through themselves, by their peer and the number that their offer has there (Message::peer
// and Message::other, which stay as they are meanwhile). Finding one looks at a few, however many there are. Does not
// own its receives. Used by one thread at a time.
class MatchedReceives final {
 public:
  // Makes room for so many receives in all. Throws std::bad_alloc, without effect.
  void reserve(std::size_t receives) {
    if (receives <= chains_.size()) return;
    std::vector<Message*> more(std::bit_ceil(receives));
    for (Message* receive : chains_) {
      while (receive != nullptr) {
        Message& each = *receive;
        receive = each.matched_next_;
        link(more, each);
      }
    }
    chains_.swap(more);
  }
  // reserve() was called for as many receives as there are then.
  void add(Message& receive) noexcept { link(chains_, receive); }
  // Does nothing with a message that was not added.
  static void remove(Message& receive) noexcept {
    if (receive.matched_link_ == nullptr) return;
    *receive.matched_link_ = receive.matched_next_;
    if (receive.matched_next_ != nullptr) receive.matched_next_->matched_link_ = receive.matched_link_;
    receive.matched_link_ = nullptr;
    receive.matched_next_ = nullptr;
  }
  // Null when there is none. `steps`, where it is given, counts the receives that were looked at.
  Message* find(int peer, std::uint64_t offer, std::size_t* steps = nullptr) const noexcept {
    if (chains_.empty()) return nullptr;
    for (Message* each = chains_[place(peer, offer, chains_.size())]; each != nullptr; each = each->matched_next_) {
      if (steps != nullptr) ++*steps;
      if (each->other == offer && each->peer == peer) return each;
    }
    return nullptr;
  }

 private:
  // An offer's number has a row in its lower half and how often the row was used in its upper half.
  static std::size_t place(int peer, std::uint64_t offer, std::size_t places) noexcept {
    const std::uint64_t key = offer + static_cast<std::uint64_t>(peer) * 0xc2b2'ae3d'27d4'eb4fU;
    return static_cast<std::size_t>((key * 0x9e37'79b9'7f4a'7c15U) >> 32) & (places - 1);
  }
  static void link(std::vector<Message*>& chains, Message& receive) noexcept {
    Message*& first = chains[place(receive.peer, receive.other, chains.size())];
    receive.matched_next_ = first;
    if (first != nullptr) first->matched_link_ = &receive.matched_next_;
    receive.matched_link_ = &first;
    first = &receive;
  }

  std::vector<Message*> chains_;  // as many as a power of two
};

}  // namespace gradwire::messages
