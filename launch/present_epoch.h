// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the ranks of an elastic job have recorded of the epoch that is under way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/membership/records.h"
#include "gradwire/observe/flight_table.h"
#include "launch/rank_process.h"

namespace gradwire::launch {

// A member of an epoch.
struct MemberHere {
  std::int64_t number = 0;
  int pid = 0;  // of its process, where the process is on this host; else 0
};
// The members of an epoch, in rank order.
using EpochMembers = std::vector<MemberHere>;
// `host`: the name of this host in the job, as in EpochMember::host.
EpochMembers members_here(const membership::Epoch& epoch, const std::string& host);

// Returns an epoch of the job, as the coordinator decided it; nothing where that cannot be known now.
using EpochLookup = std::function<std::optional<EpochMembers>(std::int64_t epoch)>;

// The epoch that is under way, as far as this host knows.
struct PresentEpoch {
  std::int64_t number = 0;              // 0: no rank of this host has opened a group of an epoch
  std::optional<EpochMembers> members;  // nothing: not known
  std::vector<bool> is_earlier;         // by rank of this host: an earlier process recorded the table
};

// `tables` and `running` have an entry for each rank of this host, in their order.
PresentEpoch present_epoch(const std::vector<observe::RankTable>& tables, const std::vector<RunningRank>& running,
                           const EpochLookup& lookup);

// The tables that tell what the epoch waits for: calls in groups of earlier epochs, calls of processes that were
// replaced and, where the members are known, other processes are left out; groups of the program's own stay. While a
// rank is in a call of a group of the epoch, a member that has not opened that of the epoch, or a duplicate of it, has
// its place there. No other place is guessed, because an epoch may have members on other hosts.
std::vector<observe::RankTable> tables_of(const PresentEpoch& epoch, const std::vector<observe::RankTable>& tables);

}  // namespace gradwire::launch
