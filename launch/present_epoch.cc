// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/present_epoch.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "gradwire/base/process_identity.h"
#include "gradwire/observe/epoch_path.h"

namespace gradwire::launch {
namespace {

using observe::GroupTable;
using observe::RankTable;

std::int64_t epoch_of_group(const GroupTable& group) { return observe::epoch_of_path(group.path); }

bool has_member(const EpochMembers& members, const RankTable& table) {
  return std::any_of(members.begin(), members.end(),
                     [&](const MemberHere& member) { return member.pid != 0 && member.pid == table.pid; });
}

// Whether a rank is in a call of a group of the epoch. An epoch that broke while its members met has ended calls only,
// and members that never opened its group and are ready for the next one.
bool any_waits_in(std::int64_t epoch, const std::vector<RankTable>& tables) {
  const auto waits = [](const observe::CallRow& call) { return call.outcome == observe::Outcome::none; };
  return std::any_of(tables.begin(), tables.end(), [&](const RankTable& table) {
    return std::any_of(table.groups.begin(), table.groups.end(), [&](const GroupTable& group) {
      return epoch_of_group(group) == epoch && std::any_of(group.calls.begin(), group.calls.end(), waits);
    });
  });
}

// The paths of the groups of all members that the tables have: that of the epoch, and its duplicates.
std::set<std::string> groups_of_all(const PresentEpoch& epoch, const std::vector<RankTable>& tables) {
  const std::string whole = observe::path_of_epoch(epoch.number);
  std::set<std::string> paths{whole};
  for (const RankTable& table : tables) {
    for (const GroupTable& group : table.groups) {
      if (group.path.starts_with(whole + ".dup") && group.path.find(".split") == std::string::npos)
        paths.insert(group.path);
    }
  }
  return paths;
}

// A member has its place in such a group also before it has opened the group.
void add_places(RankTable& table, const EpochMembers& members, std::set<std::string> paths) {
  for (const GroupTable& group : table.groups) paths.erase(group.path);
  const auto member =
      std::find_if(members.begin(), members.end(), [&](const MemberHere& each) { return each.pid == table.pid; });
  for (const std::string& path : paths) {
    GroupTable group;
    group.path = path;
    group.rank = static_cast<int>(member - members.begin());
    group.size = static_cast<int>(members.size());
    table.groups.push_back(std::move(group));
  }
}

}  // namespace

EpochMembers members_here(const membership::Epoch& epoch, const std::string& host) {
  EpochMembers members;
  for (const membership::EpochMember& member : epoch.members) {
    // In a replay, the hosts are those of the job that is played.
    const bool is_here = epoch.played || member.host == host;
    members.push_back({member.number, is_here ? number_of_process(member.identity) : 0});
  }
  return members;
}

PresentEpoch present_epoch(const std::vector<RankTable>& tables, const std::vector<RunningRank>& running,
                           const EpochLookup& lookup) {
  PresentEpoch epoch;
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    epoch.is_earlier.push_back(running[rank].pid <= 0 || tables[rank].started < running[rank].started);
    if (epoch.is_earlier.back()) continue;
    for (const GroupTable& group : tables[rank].groups) epoch.number = std::max(epoch.number, epoch_of_group(group));
  }
  if (epoch.number != 0) epoch.members = lookup(epoch.number);
  return epoch;
}

std::vector<RankTable> tables_of(const PresentEpoch& epoch, const std::vector<RankTable>& tables) {
  std::vector<RankTable> kept;
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    if (epoch.is_earlier[rank] || (epoch.members && !has_member(*epoch.members, tables[rank]))) continue;
    RankTable& table = kept.emplace_back(tables[rank]);
    if (epoch.number == 0) continue;
    std::erase_if(table.groups, [&](const GroupTable& group) {
      const std::int64_t of = epoch_of_group(group);
      return (of != 0 && of != epoch.number) || observe::is_path_of_following(group.path);
    });
    table.world = -1;
  }
  if (epoch.number == 0 || !epoch.members || !any_waits_in(epoch.number, kept)) return kept;
  const std::set<std::string> paths = groups_of_all(epoch, kept);
  for (RankTable& table : kept) add_places(table, *epoch.members, paths);
  return kept;
}

}  // namespace gradwire::launch
