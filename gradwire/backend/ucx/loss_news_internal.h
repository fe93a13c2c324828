// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The losses that a rank's partners hear of from it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::ucx {

// Tells every partner every loss once, in one order. Where all ranks are partners there is no news: each finds out by
// itself. Used by one thread at a time.
class LossNews {
 public:
  struct Loss {
    std::size_t lost;
    std::string why;
  };

  LossNews(std::size_t peers, bool is_full_mesh) : is_known_(peers, is_full_mesh), told_(peers) {}

  // Returns whether that is news: the peer's loss has not been added before.
  bool add(std::size_t lost, const std::string& why) {
    if (is_known_[lost]) return false;
    is_known_[lost] = true;
    losses_.push_back({lost, why});
    return true;
  }
  // What the partner is to be told next; null: it has been told all. Valid until the next add().
  const Loss* next_for(std::size_t partner) const noexcept {
    return told_[partner] < losses_.size() ? &losses_[told_[partner]] : nullptr;
  }
  // The partner has been told what next_for() says.
  void told(std::size_t partner) noexcept { ++told_[partner]; }

 private:
  std::vector<bool> is_known_;
  std::vector<Loss> losses_;
  std::vector<std::size_t> told_;  // to each partner, from the first loss on
};

}  // namespace gradwire::ucx
