// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For tests of the coordinator's decisions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/membership/roster.h"

namespace gradwire::membership {

using Numbers = std::vector<std::int64_t>;

// A coordinator without a store: events get numbers, decisions are kept.
struct Bench {
  explicit Bench(RosterOptions options) { roster.options = options; }

  std::int64_t tell(const Event& event) {
    for (Put& put : apply(roster, ++events, event)) decisions.push_back(std::move(put));
    return events;
  }
  std::int64_t join(const std::string& program = "net", const std::string& host = "") {
    return tell(Joined{"someone", "1.0", program, host});
  }
  void ready(std::int64_t member) { tell(Ready{member, roster.epoch}); }

  // The members of the present epoch, as the last decision about an epoch says.
  std::vector<std::int64_t> members() const {
    std::vector<std::int64_t> numbers;
    for (const EpochMember& member : epoch().members) numbers.push_back(member.number);
    return numbers;
  }
  Epoch epoch() const { return epoch_of(value_of(epoch_key(roster.epoch))); }
  // Empty when the key was not set.
  std::string value_of(const std::string& key) const {
    std::string value;
    for (const Put& put : decisions) {
      if (put.key == key) value = put.value;
    }
    return value;
  }

  // Whether the epoch is asked to stop, where newcomers wait who follow nobody and have told that they are there, and
  // there is a place for them. An epoch that has lost a member ends by itself.
  bool stops_for_newcomers() const {
    std::int64_t waiting = 0;
    bool any_follows = false;
    bool any_lost = roster.current.empty();
    for (const auto& [number, entry] : roster.members) {
      const bool runs = std::find(roster.current.begin(), roster.current.end(), number) != roster.current.end();
      if (entry.standing == Roster::Standing::waiting && !runs && entry.is_awaited && !entry.dropped) ++waiting;
      any_lost = any_lost || (runs && entry.standing == Roster::Standing::gone);
      any_follows = any_follows || entry.follows;
    }
    const bool has_place = static_cast<int>(roster.current.size()) < roster.options.max;
    return waiting == 0 || any_follows || any_lost || !has_place || roster.change_asked;
  }

  Roster roster;
  std::int64_t events = 0;
  std::vector<Put> decisions;
};

}  // namespace gradwire::membership
