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

using Members = std::set<std::int64_t>;

// What goes as one: the members of a host, or a single member.
struct Part {
  Members members;
  std::map<std::string, std::int64_t> out_of_reach;  // other parts by name, and a member of each
};

// Whether the member waits for an epoch, and is not among those who go.
bool stays(const Roster& roster, const Members& go, std::int64_t member) {
  const auto found = roster.members.find(member);
  return found != roster.members.end() && found->second.standing == Roster::Standing::waiting &&
         !found->second.dropped && !go.contains(member);
}

// The parts that do not reach each other when the members in `go` are gone, by name.
std::map<std::string, Part> parts_out_of_reach(const Roster& roster, const Members& go) {
  std::map<std::string, Part> parts;
  for (const Unreachable& each : roster.unreachable) {
    if (each.member == each.peer || !stays(roster, go, each.member) || !stays(roster, go, each.peer)) continue;
    const auto host_of = [&](std::int64_t member) { return roster.members.at(member).host; };
    const bool on_one_host = host_of(each.member) == host_of(each.peer);
    const auto name_of = [&](std::int64_t member) {
      return on_one_host ? concat("member ", member) : concat("host ", host_of(member));
    };
    for (const auto& [one, other] : {std::pair(each.member, each.peer), std::pair(each.peer, each.member)}) {
      Part& part = parts[name_of(one)];
      part.out_of_reach.emplace(name_of(other), other);
      part.members.insert(one);
      if (on_one_host) continue;
      for (const auto& [number, entry] : roster.members) {
        if (entry.host == host_of(one) && stays(roster, go, number)) part.members.insert(number);
      }
    }
  }
  return parts;
}

// Whether the job goes on without the members in `go`.
bool may_go(const Roster& roster, const Members& go) {
  int stay = 0;
  bool any_has_state = false;
  for (const auto& [number, entry] : roster.members) {
    if (!stays(roster, go, number) || entry.leaves || !entry.is_awaited) continue;
    ++stay;
    any_has_state = any_has_state || entry.had_state;
  }
  return stay >= roster.options.min && (any_has_state || !roster.begun);
}

// The part that should go first; null when none may go.
const Part* worst_of(const std::map<std::string, Part>& parts, const Roster& roster, const Members& go) {
  const auto badness = [](const Part& part) { return std::pair(part.out_of_reach.size(), *part.members.begin()); };
  const Part* worst = nullptr;
  for (const auto& [name, part] : parts) {
    Members all = go;
    all.insert(part.members.begin(), part.members.end());
    if (may_go(roster, all) && (worst == nullptr || badness(part) > badness(*worst))) worst = &part;
  }
  return worst;
}

}  // namespace

std::vector<OutOfReach> whom_to_drop(const Roster& roster) {
  std::vector<OutOfReach> all;
  if (!roster.options.replay.empty()) return all;
  Members go;
  for (;;) {
    const auto parts = parts_out_of_reach(roster, go);
    const Part* const worst = worst_of(parts, roster, go);
    if (worst == nullptr) return all;
    for (const std::int64_t member : worst->members) all.push_back({member, worst->out_of_reach.begin()->second});
    go.insert(worst->members.begin(), worst->members.end());
  }
}

}  // namespace gradwire::membership
