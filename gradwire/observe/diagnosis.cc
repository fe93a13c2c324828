// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision, in the order of how sure a sign is: a hook's own error, calls that differ, ranks that died, a stopped
// process, and last the ranks that did not come to the call in which the others wait.
#include "gradwire/observe/diagnosis.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <utility>

#include "gradwire/observe/before_deadline_internal.h"
#include "gradwire/observe/group_view_internal.h"
#include "gradwire/observe/judged_epoch_internal.h"
#include "gradwire/observe/other_tag_internal.h"
#include "gradwire/observe/wait_search_internal.h"

namespace gradwire::observe {
namespace {

bool says_out_of_memory(const std::vector<std::string>& lines) {
  constexpr std::array<std::string_view, 5> kWords = {"bad_alloc", "MemoryError", "out of memory", "Out of memory",
                                                      "Cannot allocate memory"};
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::any_of(kWords.begin(), kWords.end(),
                       [&](std::string_view word) { return line.find(word) != std::string::npos; });
  });
}

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

// Whether the job is elastic, and the rank takes no part in the epoch that is judged; 0: none is.
bool is_outside(const RankTable& rank, std::int64_t epoch) { return epoch != 0 && !takes_part(rank, epoch); }

std::string last_words(const RankTable& rank) {
  if (rank.process.last_lines.empty()) return rank.notes.empty() ? "" : rank.notes.front().text;
  constexpr std::string_view kOfRuntime = "  what():  ";
  const std::string& line = rank.process.last_lines.back();
  return line.starts_with(kOfRuntime) ? line.substr(kOfRuntime.size()) : line;
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

// Signals by which somebody ends a process: none of them comes of what the process itself does.
bool ends_on_request(int signal) {
  constexpr std::array kRequests = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGXCPU};
  return std::find(kRequests.begin(), kRequests.end(), signal) != kRequests.end();
}

// In an elastic job, a process that had come to no epoch can be the cause only where its end ended the job.
std::optional<Diagnosis> find_death(const std::vector<RankTable>& ranks, std::int64_t epoch) {
  const RankTable* first = nullptr;
  for (const RankTable& rank : ranks) {
    const ProcessView& process = rank.process;
    if (!ended_badly(process) || (process.order != 0 && is_outside(rank, epoch))) continue;
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
    found.fault = ends_on_request(process.code) ? FaultClass::killed : FaultClass::crashed;
  } else {
    found.fault = FaultClass::failed;
    found.culprits = ranks_with_the_same_error(ranks, *first);
  }
  if (!process.by_signal || process.code != SIGKILL) found.words = last_words(*first);
  return found;
}

// Nobody waits for a process outside of the epoch.
std::optional<Diagnosis> find_stopped(const std::vector<RankTable>& ranks, std::int64_t epoch) {
  Diagnosis found{.fault = FaultClass::stopped};
  for (const RankTable& rank : ranks) {
    const char state = rank.process.seen ? rank.process.state : '?';
    if ((state == 'T' || state == 't') && !is_outside(rank, epoch)) found.culprits.push_back(rank.rank);
  }
  if (found.culprits.empty()) return std::nullopt;
  std::sort(found.culprits.begin(), found.culprits.end());
  return found;
}

// Whether `a` shows more of who is missed: a thread waits for the call, or its wait is older.
bool is_better_start(const Waiting& a, const Waiting& b) {
  const auto is_let_be = [](const Waiting& wait) { return wait.call->waited == Waited::no; };
  if (is_let_be(a) != is_let_be(b)) return is_let_be(b);
  return a.wall_time() < b.wall_time();
}

// The call that has waited longest of those that nobody answered, calls of the ranks in `without` left out. A call that
// no thread waits for only where there is no other.
std::optional<Waiting> oldest_wait(const std::vector<GroupView>& groups, const Occasion& occasion,
                                   const std::vector<int>& without = {}) {
  std::optional<Waiting> oldest;
  for (const GroupView& group : groups) {
    for (const Waiting& wait : group.unanswered()) {
      const bool too_young =
          !occasion.is_over && wait.call->ended == 0 && occasion.now - wait.call->called < occasion.bound;
      if (too_young || std::find(without.begin(), without.end(), wait.rank->rank) != without.end()) continue;
      if (!oldest || is_better_start(wait, *oldest)) oldest = wait;
    }
  }
  return oldest;
}

// By the clock of a rank that made both calls. The wall clocks of hosts may show another order.
bool is_before(const Disagreement& a, const Disagreement& b) {
  for (const auto& [rank, time] : a.called) {
    const auto other = b.called.find(rank);
    if (other != b.called.end()) return time < other->second;
  }
  return a.wall_time < b.wall_time;
}

std::optional<Diagnosis> find_mismatch(const std::vector<GroupView>& groups) {
  std::optional<Disagreement> first;
  for (const GroupView& group : groups) {
    auto found = group.first_disagreement();
    if (found && (!first || is_before(*found, *first))) first = std::move(found);
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

// The same wait, or that of another rank in the same collective, where a rank came too late for that one alone: by the
// wall clocks of two hosts the late rank may have been the first.
Waiting wait_with_absent(const std::vector<GroupView>& groups, const Waiting& wait) {
  if (wait.call->sequence == 0) return wait;
  for (const GroupView& group : groups) {
    if (group.path() != wait.group->path || !group.absent_from(wait).empty()) continue;
    for (const Waiting& other : group.unanswered()) {
      const bool is_same = other.call->sequence != 0 && number_of(*other.call) == number_of(*wait.call);
      if (is_same && !group.absent_from(other).empty()) return other;
    }
  }
  return wait;
}

// What the calls that nobody answered show, from the oldest on.
Diagnosis follow_oldest_wait(const std::vector<GroupView>& groups, const Occasion& occasion) {
  const auto wait = oldest_wait(groups, occasion);
  if (!wait) return {};
  Diagnosis found = follow_waits(groups, wait_with_absent(groups, *wait));
  found.likely_cause = sent_with_other_tag(groups, found);
  return found;
}

// The call at which the others missed the culprits, for classes that are not found through one.
void add_call(Diagnosis& found, const std::vector<GroupView>& groups, const Occasion& occasion) {
  const auto wait = oldest_wait(groups, occasion, found.culprits);
  if (!wait) return;
  found.group = wait->group->path;
  found.call = *wait->call;
}

// `epoch`: that the tables are of, in an elastic job; else 0.
Diagnosis decide(const std::vector<RankTable>& ranks, std::int64_t epoch, const Occasion& occasion) {
  const std::vector<GroupView> groups = views_of(ranks);
  if (auto found = find_hook_exception(ranks)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  if (auto found = find_mismatch(groups)) return *found;
  if (auto found = find_death(ranks, epoch)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  if (!oldest_wait(groups, occasion)) return {};
  if (auto found = find_stopped(ranks, epoch)) {
    add_call(*found, groups, occasion);
    return *found;
  }
  // A rank that gave up at its deadline is on its way to no call any more, though it may be the others that did not
  // come.
  const auto before = before_deadline(ranks);
  return before ? follow_oldest_wait(views_of(*before), {.is_over = true}) : follow_oldest_wait(groups, occasion);
}

}  // namespace

Diagnosis diagnose(const std::vector<RankTable>& ranks, const Occasion& occasion) {
  const auto epoch = judged_epoch(ranks);
  return epoch ? decide(tables_of_epoch(ranks, *epoch), *epoch, occasion) : decide(ranks, 0, occasion);
}

}  // namespace gradwire::observe
