// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision, in the order of how sure a sign is: a hook's own error, calls that differ, ranks that died, a stopped
// process, and last the ranks that did not come to the call in which the others wait.
#include "gradwire/observe/diagnosis.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "gradwire/observe/group_view_internal.h"

namespace gradwire::observe {
namespace {

// A process that computes less than this part of the time is one that waits.
constexpr double kBusy = 0.2;

bool says_out_of_memory(const std::vector<std::string>& lines) {
  constexpr std::array<std::string_view, 5> kWords = {"bad_alloc", "MemoryError", "out of memory", "Out of memory",
                                                      "Cannot allocate memory"};
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::any_of(kWords.begin(), kWords.end(),
                       [&](std::string_view word) { return line.find(word) != std::string::npos; });
  });
}

// Whether by `time` one of the rank's calls had failed because of another rank, and no later call had gone well. In an
// elastic job a rank goes on after such a failure; what happens to the rank from then on has another cause.
bool failed_by_another(const RankTable& rank, std::int64_t time) {
  std::int64_t failed = -1;
  std::int64_t went_well = -1;
  for (const GroupTable& group : rank.groups) {
    for (const CallRow& call : group.calls) {
      if (call.outcome == Outcome::none || call.ended > time) continue;
      if (call.outcome == Outcome::good) {
        went_well = std::max(went_well, call.called);
      } else if (call.outcome <= Outcome::aborted) {
        failed = std::max(failed, call.ended);
      }
    }
  }
  return failed >= 0 && went_well <= failed;
}

// The rank failed because another did.
bool is_victim(const RankTable& rank) { return failed_by_another(rank, std::numeric_limits<std::int64_t>::max()); }

bool ran_out_of_memory(const RankTable& rank) {
  const ProcessView& process = rank.process;
  if (process.by_signal && process.code == SIGKILL) return process.out_of_memory;
  return says_out_of_memory(process.last_lines);
}

// A C++ program that does not catch an exception ends with SIGABRT, after the runtime has told of the exception.
bool ended_by_exception(const RankTable& rank) {
  const ProcessView& process = rank.process;
  return process.by_signal && process.code == SIGABRT &&
         std::any_of(process.last_lines.begin(), process.last_lines.end(), [](const std::string& line) {
           return line.find("terminate called after throwing") != std::string::npos;
         });
}

std::string last_words(const RankTable& rank) {
  if (rank.process.last_lines.empty()) return rank.notes.empty() ? "" : rank.notes.front().text;
  constexpr std::string_view kOfRuntime = "  what():  ";
  const std::string& line = rank.process.last_lines.back();
  return line.starts_with(kOfRuntime) ? line.substr(kOfRuntime.size()) : line;
}

bool ended_badly(const ProcessView& process) {
  return process.has_ended && (process.by_signal || process.code != 0) && !process.by_launcher;
}

// The ranks that ended with the error with which `first` ended, `first` among them: no one of them is the cause alone.
std::vector<int> ranks_with_the_same_error(const std::vector<RankTable>& ranks, const RankTable& first) {
  std::vector<int> same{first.rank};
  const std::string words = last_words(first);
  for (const RankTable& rank : ranks) {
    if (rank.rank == first.rank || words.empty() || !ended_badly(rank.process)) continue;
    if (last_words(rank) == words) same.push_back(rank.rank);
  }
  std::sort(same.begin(), same.end());
  return same;
}

std::optional<Diagnosis> find_hook_exception(const std::vector<RankTable>& ranks) {
  const RankTable* first = nullptr;
  const NoteRow* note = nullptr;
  for (const RankTable& rank : ranks) {
    for (const NoteRow& each : rank.notes) {
      // Else what the hook throws says no more than that another rank failed.
      if (each.kind != NoteKind::hook_failed || failed_by_another(rank, each.time)) continue;
      if (note != nullptr && each.time + rank.wall_offset >= note->time + first->wall_offset) continue;
      first = &rank;
      note = &each;
    }
  }
  if (note == nullptr) return std::nullopt;
  Diagnosis found{.fault = FaultClass::hook_exception, .culprits = {first->rank}, .words = note->text};
  if (says_out_of_memory({note->text})) found.fault = FaultClass::out_of_memory;
  return found;
}

std::optional<Diagnosis> find_death(const std::vector<RankTable>& ranks) {
  const RankTable* first = nullptr;
  for (const RankTable& rank : ranks) {
    const ProcessView& process = rank.process;
    if (!ended_badly(process)) continue;
    const bool ended_itself = !process.by_signal || process.code == SIGABRT || process.code == SIGTERM;
    if (ended_itself && is_victim(rank)) continue;
    if (first == nullptr || process.order < first->process.order) first = &rank;
  }
  if (first == nullptr) return std::nullopt;
  const ProcessView& process = first->process;
  Diagnosis found{.culprits = {first->rank}};
  if (ran_out_of_memory(*first)) {
    found.fault = FaultClass::out_of_memory;
  } else if (process.by_signal && !ended_by_exception(*first)) {
    found.fault = process.code == SIGKILL ? FaultClass::killed : FaultClass::crashed;
  } else {
    found.fault = FaultClass::failed;
    found.culprits = ranks_with_the_same_error(ranks, *first);
  }
  if (!process.by_signal || process.code != SIGKILL) found.words = last_words(*first);
  return found;
}

std::optional<Diagnosis> find_stopped(const std::vector<RankTable>& ranks) {
  Diagnosis found{.fault = FaultClass::stopped};
  for (const RankTable& rank : ranks) {
    const char state = rank.process.seen ? rank.process.state : '?';
    if (state == 'T' || state == 't') found.culprits.push_back(rank.rank);
  }
  if (found.culprits.empty()) return std::nullopt;
  std::sort(found.culprits.begin(), found.culprits.end());
  return found;
}

FaultClass class_of_absence(const Member& member) {
  const ProcessView& process = member.rank->process;
  if (process.has_ended && !process.by_signal && process.code == 0) return FaultClass::left;
  if (member.group != nullptr && member.group->closed) return FaultClass::left;
  if (!process.seen) return process.has_ended ? FaultClass::failed : FaultClass::unknown;
  if (waits_for_data(process)) return FaultClass::blocked;
  return process.state == 'R' || process.busy >= kBusy ? FaultClass::slow : FaultClass::blocked;
}

// Whether the group's engine may use a network.
bool is_over_network(const GroupTable& group) { return group.backend != "shm" && group.backend != "threads"; }

// Follows the waits from rank to rank, until a rank that waits for no rank.
class Search {
 public:
  explicit Search(const std::vector<GroupView>& groups) : groups_(groups) {}

  Diagnosis from(const Waiting& start) {
    Diagnosis found{.group = start.group->path, .call = *start.call};
    Waiting at = start;
    while (true) {
      if (!visited_.insert(at.call).second) return ring(std::move(found));
      chain_.push_back(at);
      const std::vector<Member> absent = absent_from(at);
      if (absent.empty()) return all_came(std::move(found), at);
      std::optional<Waiting> next;
      for (const Member& member : absent) {
        const auto elsewhere = wait_of(*member.rank);
        if (!elsewhere) return blame(std::move(found), absent);
        next = elsewhere;
      }
      path_.push_back(absent.front().rank->rank);
      at = *next;
    }
  }

 private:
  // The call in which the rank waits, if it does.
  std::optional<Waiting> wait_of(const RankTable& rank) const {
    std::optional<Waiting> oldest;
    for (const GroupView& group : groups_) {
      for (const Waiting& wait : group.pending()) {
        if (wait.rank == &rank && (!oldest || wait.call->called < oldest->call->called)) oldest = wait;
      }
    }
    return oldest;
  }

  // The members without which the call cannot end.
  std::vector<Member> absent_from(const Waiting& wait) const {
    for (const GroupView& group : groups_) {
      if (group.path() == wait.group->path) return group.absent_from(wait);
    }
    return {};
  }

  // Of those that wait for nobody, the ones of the worst class. A rank whose calls failed because of another one did
  // not come for that reason.
  Diagnosis blame(Diagnosis found, const std::vector<Member>& absent) const {
    std::map<FaultClass, std::vector<int>> classes;
    std::vector<Member> candidates = absent;
    std::erase_if(candidates, [&](const Member& member) { return wait_of(*member.rank).has_value(); });
    const bool only_victims =
        std::all_of(candidates.begin(), candidates.end(), [](const Member& member) { return is_victim(*member.rank); });
    for (const Member& member : candidates) {
      if (only_victims || !is_victim(*member.rank)) classes[class_of_absence(member)].push_back(member.rank->rank);
    }
    if (classes.empty()) return found;
    found.fault = classes.begin()->first;
    found.culprits = classes.begin()->second;
    std::sort(found.culprits.begin(), found.culprits.end());
    return found;
  }

  Diagnosis ring(Diagnosis found) const {
    if (auto skipped = skipped_by_one()) return *std::move(skipped);
    found.fault = FaultClass::deadlock;
    found.culprits.assign(path_.begin(), path_.end());
    std::sort(found.culprits.begin(), found.culprits.end());
    found.culprits.erase(std::unique(found.culprits.begin(), found.culprits.end()), found.culprits.end());
    found.certain = found.culprits.size() == 1;
    return found;
  }

  // The ranks of a ring of which one has left out calls: after the calls that it has made, it made another one before
  // than the one in which it waits. The other ranks go on as before.
  std::optional<Diagnosis> skipped_by_one() const {
    std::set<std::string> paths;
    for (const Waiting& wait : chain_) paths.insert(wait.group->path);
    Diagnosis found{.fault = FaultClass::skipped};
    for (const Waiting& wait : chain_) {
      switch (look_back(wait, paths)) {
        case Course::not_known:
          return std::nullopt;
        case Course::as_before:
          found.group = wait.group->path;
          found.call = *wait.call;
          break;
        case Course::left_out_calls:
          found.their_group = wait.group->path;
          found.their_call = *wait.call;
          found.culprits.push_back(wait.rank->rank);
          break;
      }
    }
    if (!found.call || found.culprits.size() != 1) return std::nullopt;
    return found;
  }

  // All ranks made the call, and it did not end well.
  Diagnosis all_came(Diagnosis found, const Waiting& wait) const {
    const Outcome outcome = wait.call->outcome;
    const bool stands = outcome == Outcome::none && is_over_network(*wait.group);
    const bool unreachable = outcome == Outcome::peer || outcome == Outcome::timeout || stands;
    found.fault = unreachable && wait.knows_all ? FaultClass::network : FaultClass::unknown;
    if (found.fault == FaultClass::network) found.culprits = most_missed(wait.group->path);
    return found;
  }

  // The rank that more ranks name in their errors than any other; none where two are named as often.
  std::vector<int> most_missed(const std::string& path) const {
    std::map<int, std::set<int>> missed_by;
    for (const GroupView& group : groups_) {
      if (group.path() != path) continue;
      for (const Waiting& wait : group.unanswered()) {
        for (int rank = 0; rank < 64; ++rank) {
          if ((wait.call->peers >> rank & 1) != 0) missed_by[wait.job_rank(rank)].insert(wait.rank->rank);
        }
      }
    }
    std::vector<int> most;
    std::size_t votes = 0;
    for (const auto& [rank, by] : missed_by) {
      if (by.size() > votes) most.clear();
      votes = std::max(votes, by.size());
      if (by.size() == votes) most.push_back(rank);
    }
    return most.size() == 1 ? most : std::vector<int>();
  }

  const std::vector<GroupView>& groups_;
  std::set<const CallRow*> visited_;
  std::vector<Waiting> chain_;
  std::vector<int> path_;
};

// The call that has waited longest of those that nobody answered, calls of the ranks in `without` left out.
std::optional<Waiting> oldest_wait(const std::vector<GroupView>& groups, const Occasion& occasion,
                                   const std::vector<int>& without = {}) {
  std::optional<Waiting> oldest;
  for (const GroupView& group : groups) {
    for (const Waiting& wait : group.unanswered()) {
      const bool too_young =
          !occasion.is_over && wait.call->ended == 0 && occasion.now - wait.call->called < occasion.bound;
      if (too_young || std::find(without.begin(), without.end(), wait.rank->rank) != without.end()) continue;
      if (!oldest || wait.wall_time() < oldest->wall_time()) oldest = wait;
    }
  }
  return oldest;
}

std::optional<Diagnosis> find_mismatch(const std::vector<GroupView>& groups) {
  std::optional<Disagreement> first;
  for (const GroupView& group : groups) {
    auto found = group.first_disagreement();
    if (found && (!first || found->wall_time < first->wall_time)) first = std::move(found);
  }
  if (!first) return std::nullopt;
  Diagnosis found{.fault = first->fault,
                  .culprits = first->culprits,
                  .certain = first->certain,
                  .group = first->group,
                  .call = first->usual,
                  .their_call = first->theirs,
                  .their_group = first->group};
  return found;
}

// The call at which the others missed the culprits, for classes that are not found through one.
void add_call(Diagnosis& found, const std::vector<GroupView>& groups, const Occasion& occasion) {
  const auto wait = oldest_wait(groups, occasion, found.culprits);
  if (!wait) return;
  found.group = wait->group->path;
  found.call = *wait->call;
}

}  // namespace

Diagnosis diagnose(const std::vector<RankTable>& ranks, const Occasion& occasion) {
  const std::vector<GroupView> groups = views_of(ranks);
  if (auto found = find_hook_exception(ranks)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  if (auto found = find_mismatch(groups)) return *found;
  if (auto found = find_death(ranks)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  const auto wait = oldest_wait(groups, occasion);
  if (!wait) return {};
  if (auto found = find_stopped(ranks)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  return Search(groups).from(*wait);
}

}  // namespace gradwire::observe
