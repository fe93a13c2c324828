// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a member that wants to leave an elastic job may go.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/membership/records.h"

namespace gradwire::internal {

// A member that leaves hands over what it holds at the boundary at which an epoch stops. Where it could not, because
// the epoch broke, because it was asked to leave between two epochs, or because all members of the epoch leave, it
// takes part in one more epoch if there is one soon. One thread uses the object.
class Departure final {
 public:
  // For how long a member that has something to hand over waits for an epoch. Less than the second that gradwire-run
  // gives a process between SIGTERM and SIGKILL.
  static constexpr Milliseconds kPatience{500};

  // The others have, or begin to take, what this member's hooks hold: from here on this member must not give it again.
  void hands_over() { handed_over_ = true; }
  // All members of `epoch` leave, so nobody has taken anything.
  void all_leave(const membership::Epoch& epoch) {
    handed_over_ = false;
    alone_.clear();
    for (const membership::EpochMember& member : epoch.members) alone_.push_back(member.number);
  }
  // The member knows `epoch`, its next one. Returns false when all members of it are those that leave with this one.
  bool is_of_use(const membership::Epoch& epoch) const {
    return alone_.empty() || std::any_of(epoch.members.begin(), epoch.members.end(), [&](const auto& member) {
             return std::find(alone_.begin(), alone_.end(), member.number) == alone_.end();
           });
  }
  void enters() {
    alone_.clear();
    owes_.reset();
  }

  // Whether a member that wants to leave, and is in no epoch, goes now. `owes` tells whether its hooks hold what no
  // other member has; it is asked once between two epochs, because the answer may take a while.
  template <class Owes>
  bool goes_now(const Owes& owes) {
    if (alone_.empty()) {
      if (handed_over_) return true;
      if (!owes_) owes_ = owes();
      if (!*owes_) return true;
    }
    if (!patience_) patience_ = Deadline::after(kPatience);
    return patience_->expired();
  }

 private:
  bool handed_over_ = false;
  std::optional<bool> owes_;         // not asked yet
  std::vector<std::int64_t> alone_;  // the members of the last epoch, when all of them leave
  std::optional<Deadline> patience_;
};

}  // namespace gradwire::internal
