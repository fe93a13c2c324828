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
  // `patience`: for how long a member that has something to hand over waits for an epoch.
  explicit Departure(Milliseconds patience) : patience_(patience) {}

  // The others have, or begin to take, what this member's hooks hold: from here on this member must not give it again.
  void hands_over() { handed_over_ = true; }
  // All other members of `epoch` leave, or there is none: what this member holds, nobody else goes on with.
  void no_other_stays(const membership::Epoch& epoch) {
    handed_over_ = false;
    alone_.clear();
    for (const membership::EpochMember& member : epoch.members) alone_.push_back(member.number);
  }
  // The member knows `epoch`, its next one. Returns false when no member of it could take over what this one holds.
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
    if (!deadline_) deadline_ = Deadline::after(patience_);
    return deadline_->expired();
  }

 private:
  bool handed_over_ = false;
  std::optional<bool> owes_;         // not asked yet
  std::vector<std::int64_t> alone_;  // the members of the last epoch, when no other one stays
  const Milliseconds patience_;
  std::optional<Deadline> deadline_;
};

}  // namespace gradwire::internal
