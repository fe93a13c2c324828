// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/judged_epoch_internal.h"

#include <algorithm>

#include "gradwire/observe/epoch_path.h"

namespace gradwire::observe {
namespace {

std::int64_t newest_epoch(const RankTable& rank) {
  std::int64_t newest = 0;
  for (const GroupTable& group : rank.groups) newest = std::max(newest, epoch_of_path(group.path));
  return newest;
}

// The epoch in which the rank last called at that time; 0: in none yet, as far as the table shows.
std::int64_t epoch_at(const RankTable& rank, std::int64_t time) {
  std::int64_t last_call = 0;
  std::int64_t epoch = 0;
  for (const GroupTable& group : rank.groups) {
    const std::int64_t of_group = epoch_of_path(group.path);
    if (of_group == 0) continue;
    for (const CallRow& call : group.calls) {
      if (call.called > time || call.called < last_call) continue;
      last_call = call.called;
      epoch = of_group;
    }
  }
  return epoch;
}

}  // namespace

std::optional<std::int64_t> judged_epoch(const std::vector<RankTable>& ranks) {
  std::int64_t newest = 0;
  std::optional<std::int64_t> of_first;
  for (const RankTable& rank : ranks) {
    const std::int64_t own = newest_epoch(rank);
    newest = std::max(newest, own);
    if (rank.process.order == 0 && ended_badly(rank.process)) of_first = std::max(of_first.value_or(0), own);
  }
  if (newest == 0) return std::nullopt;
  return of_first.value_or(newest);
}

std::vector<RankTable> tables_of_epoch(const std::vector<RankTable>& ranks, std::int64_t epoch) {
  std::vector<RankTable> tables = ranks;
  for (RankTable& table : tables) {
    if (newest_epoch(table) == 0) continue;
    std::erase_if(table.notes, [&](const NoteRow& note) { return epoch_at(table, note.time) != epoch; });
    std::erase_if(table.groups, [&](const GroupTable& group) {
      const std::int64_t of_group = epoch_of_path(group.path);
      return (of_group != 0 && of_group != epoch) || group.backend == kChangingRanks ||
             is_path_of_following(group.path);
    });
  }
  return tables;
}

bool takes_part(const RankTable& rank, std::int64_t epoch) {
  return std::any_of(rank.groups.begin(), rank.groups.end(),
                     [&](const GroupTable& group) { return epoch_of_path(group.path) == epoch; });
}

}  // namespace gradwire::observe
