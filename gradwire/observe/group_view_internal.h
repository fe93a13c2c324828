// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One group as all its ranks recorded it: who waits, who is absent, who called something else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gradwire/observe/clock_bound_internal.h"
#include "gradwire/observe/diagnosis.h"

namespace gradwire::observe {

// A rank of a group. `group` is null where the rank has not opened the group.
struct Member {
  const RankTable* rank = nullptr;
  const GroupTable* group = nullptr;
  bool came_late = false;  // of absent_from(): the rank made the call after the call had ended for the one that waits
};

// A call that did not get what it needed from others: it is under way, or ended with an error.
struct Waiting {
  const RankTable* rank = nullptr;
  const GroupTable* group = nullptr;
  const CallRow* call = nullptr;
  bool knows_all = true;            // the tables of all ranks of the group are there
  std::vector<int> job_ranks = {};  // by rank of the group; -1 where the table is missing

  std::int64_t wall_time() const noexcept { return call->called + rank->wall_offset; }
  int job_rank(int group_rank) const noexcept {
    return group_rank < static_cast<int>(job_ranks.size()) ? job_ranks[static_cast<std::size_t>(group_rank)] : -1;
  }
};

// Ranks made different calls in one place of the sequence.
struct Disagreement {
  FaultClass fault = FaultClass::other_collective;
  std::int64_t wall_time = 0;
  std::map<int, std::int64_t> called = {};  // when each rank that is right made its call, as its own clock has it
  std::vector<int> culprits = {};           // in the numbers of the job
  bool certain = true;
  std::string group = {};
  CallRow usual = {};
  CallRow theirs = {};
};

// How a rank came to the call in which it waits, going by the calls that it made before.
enum class Course { as_before, left_out_calls, not_known };
// Looks at the collectives of the rank in the groups with these paths, in the order in which the rank made them.
Course look_back(const Waiting& wait, const std::set<std::string>& paths);
// Whether the rank has made the same call from the same place before.
bool made_before(const Waiting& wait);

// Points into the tables, which outlive the object.
class GroupView {
 public:
  GroupView(std::string path, std::vector<Member> members);

  const std::string& path() const noexcept { return path_; }
  // Calls under way.
  std::vector<Waiting> pending() const;
  // Calls under way, and calls that ended because others did not come, went or disagreed.
  std::vector<Waiting> unanswered() const;
  // The known members without which the call could not end. Of a receive from any rank, all others: each of them could
  // have ended it.
  std::vector<Member> absent_from(const Waiting& wait) const;
  std::optional<Disagreement> first_disagreement() const;

 private:
  // The collective in place `sequence` of the member's sequence; null where there is none in the table.
  const CallRow* call_at(std::size_t member, std::uint64_t sequence) const;
  template <class Wanted>
  std::vector<Waiting> calls_where(const Wanted& wanted) const;
  Disagreement judge(std::uint64_t sequence, const std::vector<std::vector<std::size_t>>& camps) const;
  // Which call the ranks would make in place `sequence`, going by the calls that they agreed on before.
  const CallRow* expected_at(std::uint64_t sequence) const;
  bool was_made_before(const CallRow& call, std::uint64_t sequence) const;

  std::string path_;
  std::vector<Member> members_;           // by rank of the group
  std::vector<CallsByNumber> sequences_;  // of each member, refused calls left out
};

// The groups of a job whose ranks do not change. A group that two processes claim the same rank of is left out: its
// paths mean different groups. Ranks that have not opened a group of all ranks are members without a GroupTable where
// their places are certain.
std::vector<GroupView> views_of(const std::vector<RankTable>& ranks);

}  // namespace gradwire::observe
