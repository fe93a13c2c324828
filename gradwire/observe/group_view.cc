// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "gradwire/observe/call_pattern_internal.h"
#include "gradwire/observe/epoch_path.h"
#include "gradwire/observe/group_view_internal.h"
#include "gradwire/observe/judged_epoch_internal.h"

namespace gradwire::observe {
namespace {

// Whether ranks must pass the same number of elements.
bool has_common_count(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::broadcast:
    case CallKind::all_reduce:
    case CallKind::reduce:
    case CallKind::all_gather_into_tensor:
    case CallKind::reduce_scatter_tensor:
    case CallKind::allocate:
      return true;
    default:
      return false;
  }
}

bool has_common_root(CallKind kind) noexcept {
  return kind == CallKind::broadcast || kind == CallKind::reduce || kind == CallKind::gather ||
         kind == CallKind::scatter;
}

bool fit(const CallRow& a, const CallRow& b) noexcept {
  return a.kind == b.kind && a.dtype == b.dtype && (!has_common_count(a.kind) || a.count == b.count) &&
         (!has_common_root(a.kind) || a.root == b.root);
}

// Whether the table has no room for all calls that the rank has made in the group.
bool forgets_calls(const GroupTable& group) noexcept { return !group.calls.empty() && group.calls.front().ticket > 0; }

bool same_place(const CallerPlace& a, const CallerPlace& b) noexcept {
  return a.line == b.line && a.module == b.module && a.offset == b.offset;
}

FaultClass class_of(const CallRow& usual, const CallRow& theirs) noexcept {
  if (usual.kind != theirs.kind) return FaultClass::other_collective;
  if (usual.dtype != theirs.dtype) return FaultClass::other_dtype;
  return usual.count != theirs.count && has_common_count(usual.kind) ? FaultClass::other_shape : FaultClass::other_root;
}

// Whether the ranks of the group have the numbers that they have in the job, as far as they have opened the group.
bool has_numbers_of_job(const std::vector<Member>& members) {
  for (std::size_t place = 0; place < members.size(); ++place) {
    if (members[place].rank == nullptr) continue;
    if (members[place].rank->rank != static_cast<int>(place)) return false;
  }
  return true;
}

// Before that moment of the wall clock of `own` no call in a group of the epoch was made, though the clocks of hosts
// differ as much as those of hosts that are kept in time may. Nothing where the tables have forgotten the first call.
std::optional<std::int64_t> first_call(const RankTable& own, const std::vector<RankTable>& ranks, std::int64_t epoch) {
  constexpr std::int64_t kHostsDiffer = 2'000'000'000;
  std::optional<std::int64_t> first;
  for (const RankTable& rank : ranks) {
    for (const GroupTable& group : rank.groups) {
      if (epoch_of_path(group.path) != epoch || group.calls.empty()) continue;
      if (forgets_calls(group)) return std::nullopt;
      const std::int64_t margin = have_one_clock(own, rank) ? 0 : kHostsDiffer;
      const std::int64_t time = group.calls.front().called + rank.wall_offset - margin;
      first = std::min(first.value_or(time), time);
    }
  }
  return first;
}

// Whether the rank's process may be a member of the epoch. The members had met before the first of them made a call.
bool may_be_member(const RankTable& rank, const std::vector<RankTable>& ranks, std::int64_t epoch) {
  if (takes_part(rank, epoch)) return true;
  if (rank.pid == 0) return false;
  const auto first = first_call(rank, ranks, epoch);
  return first && (rank.started == 0 || rank.started + rank.wall_offset < *first);
}

// Puts the ranks that have not opened a group of all ranks in their places. A rank whose place is not certain is left
// out: better nobody is named than another rank than the one that is missed. In an epoch of an elastic job (else 0)
// ranks have other numbers, because members are numbered by their age, and a process may be no member.
void add_absent(std::vector<Member>& members, const std::vector<RankTable>& ranks, std::int64_t epoch) {
  std::vector<const RankTable*> absent;
  for (const RankTable& rank : ranks) {
    if (rank.world != static_cast<int>(members.size()) || rank.rank < 0 || rank.rank >= rank.world) return;
    const bool is_member =
        std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.rank == &rank; });
    if (!is_member) absent.push_back(&rank);
  }
  if (epoch == 0 && has_numbers_of_job(members)) {
    for (const RankTable* const rank : absent) {
      Member& member = members[static_cast<std::size_t>(rank->rank)];
      if (member.rank == nullptr) member = {rank, nullptr};
    }
    return;
  }
  const auto is_free = [](const Member& member) { return member.rank == nullptr; };
  const auto place = std::find_if(members.begin(), members.end(), is_free);
  const bool is_only_one = std::count_if(members.begin(), members.end(), is_free) == 1 && absent.size() == 1;
  if (is_only_one && (epoch == 0 || may_be_member(*absent.front(), ranks, epoch))) *place = {absent.front(), nullptr};
}

}  // namespace

GroupView::GroupView(std::string path, std::vector<Member> members)
    : path_(std::move(path)), members_(std::move(members)), sequences_(members_.size()) {
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (members_[member].group == nullptr) continue;
    for (const CallRow& call : members_[member].group->calls) {
      if (call.sequence != 0 && call.outcome != Outcome::refused) sequences_[member][number_of(call)] = &call;
    }
  }
}

const CallRow* GroupView::call_at(std::size_t member, std::uint64_t sequence) const {
  const auto found = sequences_[member].find(sequence);
  return found == sequences_[member].end() ? nullptr : found->second;
}

template <class Wanted>
std::vector<Waiting> GroupView::calls_where(const Wanted& wanted) const {
  std::vector<int> job_ranks;
  bool knows_all = true;
  for (const Member& member : members_) {
    job_ranks.push_back(member.rank == nullptr ? -1 : member.rank->rank);
    knows_all = knows_all && member.rank != nullptr;
  }
  std::vector<Waiting> found;
  for (const Member& member : members_) {
    if (member.group == nullptr) continue;
    for (const CallRow& call : member.group->calls) {
      if (wanted(call)) found.push_back({member.rank, member.group, &call, knows_all, job_ranks});
    }
  }
  return found;
}

std::vector<Waiting> GroupView::pending() const {
  return calls_where([](const CallRow& call) { return call.outcome == Outcome::none; });
}

std::vector<Waiting> GroupView::unanswered() const {
  return calls_where([](const CallRow& call) {
    return call.outcome == Outcome::none || call.outcome == Outcome::peer || call.outcome == Outcome::timeout ||
           call.outcome == Outcome::aborted;
  });
}

std::vector<Member> GroupView::absent_from(const Waiting& wait) const {
  std::vector<Member> absent;
  const CallRow& call = *wait.call;
  if (call.kind == CallKind::recv_anysource) {
    // Where a member is not known, that one may be who would send.
    for (const Member& member : members_) {
      if (wait.knows_all && member.rank != wait.rank) absent.push_back(member);
    }
    return absent;
  }
  if (is_message(call.kind)) {
    const bool names_peer = call.root >= 0 && call.root < static_cast<int>(members_.size());
    if (names_peer && members_[static_cast<std::size_t>(call.root)].rank != nullptr)
      absent.push_back(members_[static_cast<std::size_t>(call.root)]);
    return absent;
  }
  // The place of the call without refused ones before it.
  const auto& own = sequences_[static_cast<std::size_t>(wait.group->rank)];
  const auto place = std::find_if(own.begin(), own.end(), [&](const auto& each) { return each.second == &call; });
  if (place == own.end()) return absent;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (members_[member].rank == nullptr || members_[member].rank == wait.rank) continue;
    const auto& theirs = sequences_[member];
    const bool has_passed = !theirs.empty() && theirs.rbegin()->first >= place->first;
    const CallRow* const part = call_at(member, place->first);
    const bool came_late = part != nullptr && call.ended != 0 &&
                           part->called > call.ended - least_shift({*wait.rank, own}, {*members_[member].rank, theirs});
    if (!has_passed || came_late) absent.push_back({members_[member].rank, members_[member].group, came_late});
  }
  return absent;
}

std::optional<Disagreement> GroupView::first_disagreement() const {
  std::set<std::uint64_t> places;
  for (const auto& sequence : sequences_) {
    for (const auto& [place, call] : sequence) places.insert(place);
  }
  for (const std::uint64_t place : places) {
    std::vector<std::vector<std::size_t>> camps;  // members with calls that fit
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const CallRow* const call = call_at(member, place);
      if (call == nullptr) continue;
      const auto camp = std::find_if(camps.begin(), camps.end(),
                                     [&](const auto& each) { return fit(*call_at(each.front(), place), *call); });
      if (camp == camps.end()) {
        camps.push_back({member});
      } else {
        camp->push_back(member);
      }
    }
    if (camps.size() > 1) return judge(place, camps);
  }
  return std::nullopt;
}

Disagreement GroupView::judge(std::uint64_t sequence, const std::vector<std::vector<std::size_t>>& camps) const {
  // Most ranks are right; where there is no majority, those are who go on as before.
  auto right =
      std::max_element(camps.begin(), camps.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const auto as_large = [&](const auto& camp) { return camp.size() == right->size(); };
  bool certain = std::count_if(camps.begin(), camps.end(), as_large) == 1;
  if (!certain) {
    const CallRow* const expected = expected_at(sequence);
    const auto as_before = std::find_if(camps.begin(), camps.end(), [&](const auto& camp) {
      return expected != nullptr && fit(*expected, *call_at(camp.front(), sequence));
    });
    certain = as_before != camps.end();
    if (certain) right = as_before;
  }
  Disagreement found{.certain = certain, .group = path_, .usual = *call_at(right->front(), sequence)};
  found.wall_time = found.usual.called + members_[right->front()].rank->wall_offset;
  for (const std::size_t member : *right) found.called[members_[member].rank->rank] = call_at(member, sequence)->called;
  bool has_theirs = false;
  for (auto camp = camps.begin(); camp != camps.end(); ++camp) {
    if (camp == right && certain) continue;
    if (camp != right && !std::exchange(has_theirs, true)) found.theirs = *call_at(camp->front(), sequence);
    for (const std::size_t member : *camp) found.culprits.push_back(members_[member].rank->rank);
  }
  std::sort(found.culprits.begin(), found.culprits.end());
  found.fault = class_of(found.usual, found.theirs);
  const bool elsewhere = !same_place(found.usual.place, found.theirs.place);
  if (certain && elsewhere && was_made_before(found.theirs, sequence)) found.fault = FaultClass::skipped;
  return found;
}

const CallRow* GroupView::expected_at(std::uint64_t sequence) const {
  const std::size_t reference = static_cast<std::size_t>(
      std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& calls) { return calls.contains(sequence); }) -
      sequences_.begin());
  const auto same = [&](std::uint64_t a, std::uint64_t b) {
    const CallRow* const one = call_at(reference, a);
    const CallRow* const other = call_at(reference, b);
    return one != nullptr && other != nullptr && fit(*one, *other) && same_place(one->place, other->place);
  };
  const std::uint64_t first = sequences_[reference].begin()->first;
  const auto place = place_like({.first = first, .here = sequence, .is_whole = first == 1}, same);
  return place ? call_at(reference, *place) : nullptr;
}

Course look_back(const Waiting& wait, const std::set<std::string>& paths) {
  struct Step {
    const GroupTable* group;
    const CallRow* call;
  };
  std::vector<Step> steps;
  std::int64_t known_since = 0;  // before that, calls of one of the groups are forgotten
  for (const GroupTable& group : wait.rank->groups) {
    if (!paths.contains(group.path)) continue;
    if (forgets_calls(group)) known_since = std::max(known_since, group.calls.front().called);
    for (const CallRow& call : group.calls) {
      const bool counts = call.sequence != 0 && call.outcome != Outcome::refused && call.called < wait.call->called;
      if (counts) steps.push_back({&group, &call});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](auto a, auto b) { return a.call->called < b.call->called; });
  const std::size_t here = steps.size();
  steps.push_back({wait.group, wait.call});
  const auto first_known =
      std::find_if(steps.begin(), steps.end(), [&](const Step& step) { return step.call->called >= known_since; });
  const auto same = [&](std::size_t a, std::size_t b) {
    return steps[a].group == steps[b].group && fit(*steps[a].call, *steps[b].call) &&
           same_place(steps[a].call->place, steps[b].call->place);
  };
  const std::size_t first = static_cast<std::size_t>(first_known - steps.begin());
  const auto before = place_like({.first = first, .here = here, .is_whole = known_since == 0}, same);
  if (!before) return Course::not_known;
  if (same(*before, here)) return Course::as_before;
  for (std::size_t place = first; place < here; ++place) {
    if (same(place, here)) return Course::left_out_calls;
  }
  return Course::not_known;
}

bool made_before(const Waiting& wait) {
  return std::any_of(wait.group->calls.begin(), wait.group->calls.end(), [&](const CallRow& call) {
    return call.ticket < wait.call->ticket && call.outcome != Outcome::refused && fit(call, *wait.call) &&
           same_place(call.place, wait.call->place);
  });
}

bool GroupView::was_made_before(const CallRow& call, std::uint64_t sequence) const {
  return std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& calls) {
    return std::any_of(calls.begin(), calls.lower_bound(sequence), [&](const auto& each) {
      return fit(*each.second, call) && same_place(each.second->place, call.place);
    });
  });
}

std::vector<GroupView> views_of(const std::vector<RankTable>& ranks) {
  std::map<std::string, std::vector<Member>> by_path;
  std::set<std::string> ambiguous;
  for (const RankTable& rank : ranks) {
    for (const GroupTable& group : rank.groups) {
      if (group.backend == kChangingRanks || group.size < 1 || group.size > 4096 || group.rank < 0 ||
          group.rank >= group.size)
        continue;
      auto& members = by_path[group.path];
      if (members.empty()) members.resize(static_cast<std::size_t>(group.size));
      Member& member = members[static_cast<std::size_t>(
          std::min<std::size_t>(members.size() - 1, static_cast<std::size_t>(group.rank)))];
      if (members.size() != static_cast<std::size_t>(group.size) || member.rank != nullptr) {
        ambiguous.insert(group.path);
      } else {
        member = {&rank, &group};
      }
    }
  }
  std::vector<GroupView> views;
  for (auto& [path, members] : by_path) {
    if (ambiguous.contains(path)) continue;
    add_absent(members, ranks, epoch_of_path(path));
    views.emplace_back(path, std::move(members));
  }
  return views;
}

}  // namespace gradwire::observe
