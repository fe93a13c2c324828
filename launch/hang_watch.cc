// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/hang_watch.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using observe::FaultClass;

// A process of these classes keeps the others waiting, and a new process of the program does not.
bool is_mended_by_a_new_process(FaultClass fault) {
  return fault == FaultClass::stopped || fault == FaultClass::slow || fault == FaultClass::blocked;
}

// Why nobody is killed, as far as the diagnosis alone tells; empty where it names one rank that may be.
std::string objection_to(const observe::Diagnosis& found) {
  if (!is_mended_by_a_new_process(found.fault)) {
    if (found.fault == FaultClass::unknown) return "the calls of this host's ranks do not show which rank is the cause";
    return concat("what is wrong (", name_of(found.fault), ") is not mended by a new process");
  }
  if (found.culprits.size() != 1 || !found.certain)
    return concat("the diagnosis names ", found.culprits.empty() ? "no rank" : name_ranks(found.culprits),
                  ", and not one rank");
  return "";
}

// The same of the process that the diagnosis names. `rank`: on this host.
std::string objection_to(const HangSight& sight, std::size_t rank, const std::string& name) {
  const observe::RankTable& table = sight.tables[rank];
  if (sight.running[rank].pid <= 0 || sight.epoch.is_earlier[rank])
    return concat("the process of ", name, " that was recorded has ended");
  if (table.process.state == 't') return concat("a debugger holds ", name);
  // The number of a process is one in the name space of that process.
  if (sight.groups[rank] != sight.running[rank].pid) {
    return concat("the calls of ", name, " were recorded by process ", table.pid,
                  ", which does not belong to the process group that gradwire-run started (", sight.running[rank].pid,
                  ")");
  }
  if (sight.epoch.number == 0) return "no rank of this host takes part in an epoch";
  if (!sight.epoch.members) return concat("the members of epoch ", sight.epoch.number, " are not known here");
  return "";
}

}  // namespace

bool HangWatch::look(Time now, std::int64_t event, Milliseconds pause) {
  const WatchedTime::Duration watched = time_.look(now, 2 * pause);
  if (event_ != event) {
    event_ = event;
    since_ = watched;
    last_.clear();
    told_ = false;
  }
  return event != 0 && watched - since_ >= bound_;
}

std::optional<HangAnswer> HangWatch::judge(const HangSight& sight) {
  const observe::Diagnosis& found = sight.diagnosis;
  if (found.fault == FaultClass::none) {
    last_.clear();
    return std::nullopt;
  }
  std::string objection = objection_to(found);
  std::size_t rank = 0;
  std::int64_t member = 0;
  if (objection.empty()) {
    const int culprit = found.culprits.front();
    while (rank < sight.tables.size() && sight.tables[rank].rank != culprit) ++rank;
    if (rank == sight.tables.size()) return std::nullopt;
    objection = objection_to(sight, rank, concat("rank ", culprit));
  }
  if (objection.empty()) {
    const EpochMembers& members = *sight.epoch.members;
    const auto here = std::find_if(members.begin(), members.end(),
                                   [&](const MemberHere& each) { return each.pid == sight.tables[rank].pid; });
    // Others of the epoch do not wait for such a process.
    if (here == members.end())
      objection = concat("process ", sight.tables[rank].pid, " is no member of epoch ", sight.epoch.number);
    else
      member = here->number;
  }
  std::string shown = objection.empty() ? concat("process ", sight.running[rank].pid) : objection;
  if (std::exchange(last_, shown) != shown) return std::nullopt;
  const std::string how_long = measured_seconds(static_cast<double>(sight.standstill) / 1e9);
  if (!objection.empty()) {
    if (std::exchange(told_, true)) return std::nullopt;
    return HangAnswer{.text = concat("gradwire-run: the job stands still for ", how_long,
                                     ", and --replace-stalled kills nobody: ", objection, "\n")};
  }
  forget();
  return HangAnswer{static_cast<int>(rank),
                    concat("gradwire-run: rank ", sight.tables[rank].rank, " (member ", member, ", process ",
                           sight.running[rank].pid, " on host ", host_, ") keeps the others waiting (",
                           name_of(found.fault), "): no call has begun or ended for ", how_long,
                           "; gradwire-run kills it, and the others go on while a new process takes its place\n")};
}

}  // namespace gradwire::launch
