// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/wait_search_internal.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace gradwire::observe {
namespace {

// A process that computes less than this part of the time is one that waits.
constexpr double kBusy = 0.2;

// What the last look showed counts where the launcher ended the process, or where the process came later. Another one
// that has ended was on its way to no call any more.
FaultClass class_of_absence(const Member& member) {
  const ProcessView& process = member.rank->process;
  if (process.has_ended && !process.by_signal && process.code == 0) return FaultClass::left;
  if (member.group != nullptr && member.group->closed) return FaultClass::left;
  if (process.has_ended && !process.by_launcher && !member.came_late) return FaultClass::failed;
  if (!process.seen) return process.has_ended ? FaultClass::failed : FaultClass::unknown;
  if (waits_for_data(process)) return FaultClass::blocked;
  return process.state == 'R' || process.busy >= kBusy ? FaultClass::slow : FaultClass::blocked;
}

// Whether the look at the rank's process shows that the process does something else than to wait for other ranks, which
// is a futex. A call under way does not show that: the rank may have posted it early, and wait for it later.
bool is_elsewhere(const RankTable& rank) {
  const ProcessView& process = rank.process;
  if (process.state == 'R' || process.busy >= kBusy) return true;
  return !process.system_call.empty() && process.system_call != "futex";
}

// Whether the group's engine may use a network.
bool is_over_network(const GroupTable& group) { return group.backend != "shm" && group.backend != "threads"; }

// Over a network a rank that waits for others sleeps in poll(), so such a call says nothing there.
bool sleeps_over_network(const Waiting& wait) {
  const std::string& call = wait.rank->process.system_call;
  return is_over_network(*wait.group) && (call == "poll" || call == "ppoll");
}

// Whether the rank does something else while its call is under way: nobody waits for the call. A main thread in a futex
// may wait for the call's future, and one that polls may do so over a network.
bool goes_on_meanwhile(const Waiting& wait) {
  const ProcessView& process = wait.rank->process;
  const bool is_known = process.seen && (!process.has_ended || process.by_launcher);
  if (wait.call->waited != Waited::no || !is_known || process.system_call == "futex") return false;
  // Where the system call cannot be read, a main thread that sleeps may sleep in a futex.
  if (process.system_call.empty() && process.state != 'R') return false;
  return is_elsewhere(*wait.rank) && !sleeps_over_network(wait);
}

// Which of a rank's calls under way is the one in which the rank waits.
enum class Choice {
  oldest,            // of those that a thread waits for, the one that was made first; where there is none, of all
  oldest_collective  // as above, but messages only where there is no collective: they may have been posted early
};

// Follows the waits from rank to rank, until a rank that waits for no rank.
class Search {
 public:
  Search(const std::vector<GroupView>& groups, Choice choice) : groups_(groups), choice_(choice) {
    for (const GroupView& group : groups_) {
      for (Waiting& wait : group.pending()) {
        const auto [known, is_new] = oldest_.try_emplace(wait.rank, wait);
        if (!is_new && is_before(*wait.call, *known->second.call)) known->second = std::move(wait);
      }
    }
  }

  Diagnosis from(const Waiting& start) {
    Diagnosis found{.group = start.group->path, .call = *start.call};
    Waiting at = start;
    while (true) {
      if (!visited_.insert(at.call).second) return ring(std::move(found), at);
      chain_.push_back(at);
      const std::vector<Member> absent = absent_from(at);
      if (absent.empty()) return all_came(std::move(found), at);
      std::optional<Waiting> next;
      for (const Member& member : absent) {
        const auto elsewhere = wait_of(*member.rank);
        if (!elsewhere) return blame(std::move(found), at, absent);
        next = elsewhere;
      }
      at = *next;
    }
  }

 private:
  bool is_before(const CallRow& a, const CallRow& b) const {
    if (a.waited != b.waited) return a.waited == Waited::yes || b.waited == Waited::no;
    if (choice_ == Choice::oldest_collective && is_message(a.kind) != is_message(b.kind)) return is_message(b.kind);
    return a.called < b.called;
  }

  // The call in which the rank waits, if it does.
  std::optional<Waiting> wait_of(const RankTable& rank) const {
    const auto known = oldest_.find(&rank);
    if (known == oldest_.end() || goes_on_meanwhile(known->second)) return std::nullopt;
    return known->second;
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
  Diagnosis blame(Diagnosis found, const Waiting& wait, const std::vector<Member>& absent) const {
    std::map<FaultClass, std::vector<int>> classes;
    std::vector<Member> candidates = absent;
    std::erase_if(candidates, [&](const Member& member) { return wait_of(*member.rank).has_value(); });
    const bool only_victims =
        std::all_of(candidates.begin(), candidates.end(), [](const Member& member) { return is_victim(*member.rank); });
    for (const Member& member : candidates) {
      if (only_victims || !is_victim(*member.rank)) classes[class_of_absence(member)].push_back(member.rank->rank);
    }
    // Who has left sends nothing more; a receive from any rank waits for those who are still there.
    if (wait.call->kind == CallKind::recv_anysource && classes.size() > 1) classes.erase(FaultClass::left);
    if (classes.empty()) return found;
    found.fault = classes.begin()->first;
    found.culprits = classes.begin()->second;
    std::sort(found.culprits.begin(), found.culprits.end());
    return found;
  }

  // `at`: the wait to which the search has come again.
  Diagnosis ring(Diagnosis found, const Waiting& at) const {
    if (auto beyond = beyond_messages(at)) return *std::move(beyond);
    if (auto skipped = skipped_by_one()) return *std::move(skipped);
    const auto first =
        std::find_if(chain_.begin(), chain_.end(), [&](const Waiting& wait) { return wait.call == at.call; });
    const std::vector<Waiting> waits(first, chain_.end());
    if (auto elsewhere = one_elsewhere(waits)) return *std::move(elsewhere);
    if (auto odd = odd_ones_out(found.group)) return *std::move(odd);
    found.fault = FaultClass::deadlock;
    for (const Waiting& wait : waits) {
      found.culprits.push_back(wait.rank->rank);
      if (wait.call->kind != CallKind::recv_anysource) continue;
      for (const Member& member : absent_from(wait)) found.culprits.push_back(member.rank->rank);
    }
    std::sort(found.culprits.begin(), found.culprits.end());
    found.culprits.erase(std::unique(found.culprits.begin(), found.culprits.end()), found.culprits.end());
    found.certain = found.culprits.size() == 1;
    return found;
  }

  // What the search finds from here where messages that were posted early are no waits: receives that lie ready for
  // the end of the job, for example. Nothing where it finds another ring, or no cause.
  std::optional<Diagnosis> beyond_messages(const Waiting& at) const {
    if (choice_ != Choice::oldest) return std::nullopt;
    Search again(groups_, Choice::oldest_collective);
    const auto start = again.wait_of(*at.rank);
    const bool same = std::all_of(oldest_.begin(), oldest_.end(), [&](const auto& known) {
      return again.oldest_.at(known.first).call == known.second.call;
    });
    if (!start || same) return std::nullopt;
    const Diagnosis found = again.from(*start);
    constexpr FaultClass kAbsences[] = {FaultClass::left, FaultClass::slow, FaultClass::blocked};
    const bool is_absence = std::find(std::begin(kAbsences), std::end(kAbsences), found.fault) != std::end(kAbsences);
    return is_absence ? std::optional(found) : std::nullopt;
  }

  // The only rank of a ring whose process does something else than to wait for the others. It has posted a message, and
  // does not wait for it yet.
  std::optional<Diagnosis> one_elsewhere(const std::vector<Waiting>& waits) const {
    const auto is_known = [](const Waiting& wait) { return wait.rank->process.seen && !wait.rank->process.has_ended; };
    const auto is_one = [](const Waiting& wait) { return is_elsewhere(*wait.rank) && !sleeps_over_network(wait); };
    const bool is_only_one = std::all_of(waits.begin(), waits.end(), is_known) &&
                             std::count_if(waits.begin(), waits.end(), is_one) == 1 && waits.size() > 1;
    if (!is_only_one) return std::nullopt;
    const auto one = std::find_if(waits.begin(), waits.end(), is_one);
    if (!is_message(one->call->kind)) return std::nullopt;
    // The wait before it in the ring is for the rank.
    const Waiting& others = one == waits.begin() ? waits.back() : *std::prev(one);
    return Diagnosis{.fault = class_of_absence({one->rank, one->group}),
                     .culprits = {one->rank->rank},
                     .group = others.group->path,
                     .call = *others.call};
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

  // The ranks of a ring that wait in another call than most ranks, where nothing in the calls before says more. All
  // ranks of the group must be known and wait in one of two calls, none in both.
  std::optional<Diagnosis> odd_ones_out(const std::string& path) const {
    std::map<std::pair<std::string, std::uint64_t>, std::map<int, Waiting>> calls;
    std::map<std::pair<std::string, std::uint64_t>, std::map<int, Waiting>> camps;
    std::size_t members = 0;
    std::set<int> ranks;
    for (const GroupView& group : groups_) {
      for (const Waiting& wait : group.pending()) {
        if (group.path() == path) members = wait.knows_all ? wait.job_ranks.size() : 0;
        const int rank = wait.rank->rank;
        ranks.insert(rank);
        calls[{group.path(), number_of(*wait.call)}].emplace(rank, wait);
        const auto oldest = wait_of(*wait.rank);
        if (!oldest) return std::nullopt;
        camps[{oldest->group->path, number_of(*oldest->call)}].emplace(rank, *oldest);
      }
    }
    if (camps.size() != 2 || members == 0 || ranks.size() != members) return std::nullopt;
    auto fewer = camps.begin();
    auto most = std::next(fewer);
    if (fewer->second.size() > most->second.size()) std::swap(fewer, most);
    const bool some_wait_in_both = calls[fewer->first].size() + calls[most->first].size() > members;
    if (fewer->second.size() == most->second.size() || some_wait_in_both) return std::nullopt;
    const Waiting& usual = most->second.begin()->second;
    const Waiting& theirs = fewer->second.begin()->second;
    Diagnosis found{.fault = made_before(theirs) ? FaultClass::skipped : FaultClass::other_collective,
                    .group = usual.group->path,
                    .call = *usual.call,
                    .their_call = *theirs.call,
                    .their_group = theirs.group->path};
    for (const auto& [rank, wait] : fewer->second) found.culprits.push_back(rank);
    return found;
  }

  // All ranks made the call, and it did not end well.
  Diagnosis all_came(Diagnosis found, const Waiting& wait) const {
    const Outcome outcome = wait.call->outcome;
    // Of a message, the table does not show what the peer has done.
    const bool stands = outcome == Outcome::none && wait.call->kind != CallKind::recv_anysource;
    const bool unreachable =
        is_over_network(*wait.group) && (outcome == Outcome::peer || outcome == Outcome::timeout || stands);
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
  const Choice choice_;
  std::map<const RankTable*, Waiting> oldest_;  // the call in which each rank waits
  std::set<const CallRow*> visited_;
  std::vector<Waiting> chain_;
};

}  // namespace

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

bool is_victim(const RankTable& rank) { return failed_by_another(rank, std::numeric_limits<std::int64_t>::max()); }

Diagnosis follow_waits(const std::vector<GroupView>& groups, const Waiting& start) {
  return Search(groups, Choice::oldest).from(start);
}

}  // namespace gradwire::observe
