// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/before_deadline_internal.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "gradwire/observe/clock_bound_internal.h"
#include "gradwire/observe/group_view_internal.h"

namespace gradwire::observe {
namespace {

// A rank tells the others that its deadline has passed before it records that its call has ended.
constexpr std::int64_t kToldBefore = 100'000'000;
constexpr std::int64_t kHostsDiffer = 2'000'000'000;

// The call in which the rank gave up.
const CallRow* given_up(const RankTable& rank) {
  std::int64_t went_well = -1;
  for (const GroupTable& group : rank.groups) {
    for (const CallRow& call : group.calls) {
      if (call.outcome == Outcome::good) went_well = std::max(went_well, call.called);
    }
  }
  const CallRow* first = nullptr;
  for (const GroupTable& group : rank.groups) {
    for (const CallRow& call : group.calls) {
      if (call.outcome != Outcome::timeout || call.ended <= went_well) continue;
      if (first == nullptr || call.ended < first->ended) first = &call;
    }
  }
  return first;
}

bool is_failure(Outcome outcome) noexcept {
  return outcome == Outcome::peer || outcome == Outcome::timeout || outcome == Outcome::aborted;
}

// Takes back what the rank did after `time` of its own clock, where it waited then.
void take_back(RankTable& rank, std::int64_t time, std::int64_t margin) {
  bool waited = false;
  for (GroupTable& group : rank.groups) {
    for (CallRow& call : group.calls) {
      if (!is_failure(call.outcome) || call.called >= time || call.ended < time - margin) continue;
      call.outcome = Outcome::none;
      waited = true;
    }
  }
  if (!waited) return;
  for (GroupTable& group : rank.groups) group.closed = false;
  rank.process.seen = false;
  rank.process.has_ended = false;
}

// The ranks that made the call when it had ended. The wall clocks of hosts may show another order.
std::set<int> late_for(const CallRow& call, const std::vector<RankTable>& ranks) {
  std::set<int> late;
  const std::vector<GroupView> groups = views_of(ranks);
  for (const GroupView& group : groups) {
    for (const Waiting& wait : group.unanswered()) {
      if (wait.call != &call) continue;
      for (const Member& member : group.absent_from(wait)) {
        if (member.came_late) late.insert(member.rank->rank);
      }
    }
  }
  return late;
}

}  // namespace

std::optional<std::vector<RankTable>> before_deadline(const std::vector<RankTable>& ranks) {
  const RankTable* first = nullptr;
  const CallRow* call = nullptr;
  std::int64_t deadline = 0;  // of the wall clock
  for (const RankTable& rank : ranks) {
    const CallRow* const own = given_up(rank);
    if (own == nullptr || (first != nullptr && own->ended + rank.wall_offset >= deadline)) continue;
    first = &rank;
    call = own;
    deadline = own->ended + rank.wall_offset;
  }
  if (first == nullptr) return std::nullopt;
  const std::set<int> late = late_for(*call, ranks);
  std::vector<RankTable> before = ranks;
  for (RankTable& rank : before) {
    if (late.contains(rank.rank)) continue;
    take_back(rank, deadline - rank.wall_offset, have_one_clock(*first, rank) ? kToldBefore : kHostsDiffer);
  }
  return before;
}

}  // namespace gradwire::observe
