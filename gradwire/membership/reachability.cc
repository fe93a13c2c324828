// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/reachability.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::membership {
namespace {

// What goes as one: the members of a host, or a single member.
class Parts {
 public:
  explicit Parts(const Roster& roster) : roster_(roster) {
    for (const Unreachable& each : roster.unreachable) {
      if (each.member == each.peer || !is_there(each.member) || !is_there(each.peer)) continue;
      const bool on_one_host = host_of(each.member) == host_of(each.peer);
      const std::string one = name_of(each.member, on_one_host);
      const std::string other = name_of(each.peer, on_one_host);
      part_of(each.member, on_one_host).out_of_reach.emplace(other, each.peer);
      part_of(each.peer, on_one_host).out_of_reach.emplace(one, each.member);
    }
  }

  // Takes away the part that should go first. Returns its members, each with a member that it does not reach; empty
  // when the parts that are left reach each other, or have to stay.
  std::vector<OutOfReach> take_worst() {
    auto worst = parts_.end();
    for (auto part = parts_.begin(); part != parts_.end(); ++part) {
      if (part->second.out_of_reach.empty() || !may_go(part->second)) continue;
      const auto badness = [](const Part& of) { return std::pair(of.out_of_reach.size(), of.members.front()); };
      if (worst == parts_.end() || badness(part->second) > badness(worst->second)) worst = part;
    }
    std::vector<OutOfReach> taken;
    if (worst == parts_.end()) return taken;
    for (const std::int64_t member : worst->second.members) {
      if (gone_.contains(member)) continue;  // by itself, before its host
      taken.push_back({member, worst->second.out_of_reach.begin()->second});
      gone_.insert(member);
    }
    remove(worst);
    return taken;
  }

 private:
  struct Part {
    std::vector<std::int64_t> members;                 // those who joined first come first
    std::map<std::string, std::int64_t> out_of_reach;  // other parts by name, and a member of each
  };

  bool is_there(std::int64_t member) const {
    const auto found = roster_.members.find(member);
    return found != roster_.members.end() && found->second.standing == Roster::Standing::waiting &&
           !found->second.dropped;
  }
  const std::string& host_of(std::int64_t member) const { return roster_.members.at(member).host; }

  std::string name_of(std::int64_t member, bool alone) const {
    return alone ? concat("member ", member) : concat("host ", host_of(member));
  }
  Part& part_of(std::int64_t member, bool alone) {
    Part& part = parts_[name_of(member, alone)];
    if (!part.members.empty()) return part;
    for (const auto& [number, entry] : roster_.members) {
      if (is_there(number) && (alone ? number == member : entry.host == host_of(member)))
        part.members.push_back(number);
    }
    return part;
  }

  void remove(std::map<std::string, Part>::iterator part) {
    for (const auto& [other, member] : part->second.out_of_reach) parts_.at(other).out_of_reach.erase(part->first);
    parts_.erase(part);
    // Single members whose host has gone.
    for (auto each = parts_.begin(); each != parts_.end();) {
      const auto now = each++;
      const auto& members = now->second.members;
      const bool all_gone =
          std::all_of(members.begin(), members.end(), [this](std::int64_t member) { return gone_.contains(member); });
      if (all_gone) return remove(now);
    }
  }

  bool may_go(const Part& part) const {
    int stay = 0;
    bool any_has_state = false;
    for (const auto& [number, entry] : roster_.members) {
      const bool goes = std::find(part.members.begin(), part.members.end(), number) != part.members.end();
      if (goes || gone_.contains(number) || !is_there(number) || entry.leaves || !entry.is_awaited) continue;
      ++stay;
      any_has_state = any_has_state || entry.had_state;
    }
    return stay >= roster_.options.min && (any_has_state || !roster_.begun);
  }

  const Roster& roster_;
  std::map<std::string, Part> parts_;  // by name
  std::set<std::int64_t> gone_;
};

}  // namespace

std::vector<OutOfReach> whom_to_drop(const Roster& roster) {
  std::vector<OutOfReach> all;
  if (roster.unreachable.empty() || !roster.options.replay.empty()) return all;
  Parts parts(roster);
  for (auto taken = parts.take_worst(); !taken.empty(); taken = parts.take_worst())
    all.insert(all.end(), taken.begin(), taken.end());
  return all;
}

}  // namespace gradwire::membership
