// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks whose part of a channel cannot come any more.
#pragma once

#include <cstddef>
#include <exception>
#include <map>

#include "gradwire/backend/backend.h"

namespace gradwire::messages {

// Why a rank's part of a channel cannot come any more.
struct Loss {
  std::exception_ptr reason;
  // The rank left in good order: a receive from any rank goes on as long as another rank is there. After another loss
  // such a receive ends, as nobody can tell whether that rank's message was the one that it would have got.
  bool left = false;
};

// The losses of one channel. The first reason counts, for each peer and for receives from any rank.
class Losses final {
 public:
  // Returns false when the peer was lost before. Throws std::bad_alloc, without effect.
  bool add(int peer, const std::exception_ptr& reason) { return gone_.try_emplace(peer, reason).second; }
  // A rank is lost that did not leave in good order. Returns false when another was before.
  bool break_off(const std::exception_ptr& reason) noexcept {
    if (broken_ != nullptr) return false;
    broken_ = reason;
    return true;
  }
  bool contains(int peer) const noexcept { return gone_.contains(peer); }
  // Why nothing can come of `peer`, or with kAnySource of any of `others`, the number of ranks beside this one; null
  // while something can. Somebody may still send as long as one other rank is there; alone, this rank itself may.
  std::exception_ptr why_unreachable(int peer, std::size_t others) const noexcept {
    if (peer != kAnySource) {
      const auto found = gone_.find(peer);
      return found == gone_.end() ? nullptr : found->second;
    }
    if (broken_ != nullptr) return broken_;
    return others > 0 && gone_.size() == others ? gone_.begin()->second : nullptr;
  }

 private:
  std::map<int, std::exception_ptr> gone_;  // by peer
  std::exception_ptr broken_;               // the first loss of a rank that did not leave in good order
};

}  // namespace gradwire::messages
