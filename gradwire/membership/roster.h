// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decisions of the coordinator, as a pure function of the events: no clock, no store, no network. So a coordinator
// that was killed comes to the same decisions again when it reads the same events.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradwire/membership/records.h"

namespace gradwire::membership {

inline constexpr int kMaxMembers = 64;  // of an epoch

// An epoch of a job that has run, in which at least one step began.
struct PlayedEpoch {
  std::int64_t number = 0;      // of the epoch, from 1
  std::int64_t first_step = 0;  // the steps from here on, until the next entry's first step, counted in this epoch
  std::vector<std::int64_t> members = {};  // in rank order
  // Of the members: the same text for those that were on one machine. Empty: the hosts do not count.
  std::vector<std::string> hosts = {};
};

struct RosterOptions {
  int min = 1;    // an epoch has at least so many members
  int max = 64;   // and at most so many; more members wait until there is a place
  int first = 1;  // the first epoch waits for so many members, from min to max
  // Not empty: the epochs of a job that has run, which are played again. Each epoch has as many members as it had then,
  // in the same order and with the hosts that they had, wherever they run now, and stops before the first step of the
  // next one. The numbers above do not count.
  std::vector<PlayedEpoch> replay = {};
};

// Throws InvalidArgument, in one sentence, unless 1 <= min <= first <= max <= kMaxMembers.
void require_valid(const RosterOptions& options);

// What the coordinator knows of a job.
//
// The next epoch begins when every member of the present one is ready or gone, and at least `min` members (the first
// epoch: `first`) are ready or have joined. The members that were in the epoch before come first, in their old order;
// then come the others in the order in which they joined, as far as there are places. When a member joins and there is
// a place, or a member wants to leave, the members of the present epoch are asked to stop at a step boundary. So are
// they when a slow member is dropped, which happens only while at least `min` other members of the epoch are left that
// are neither gone, nor dropped, nor leaving. A dropped member is in no later epoch. The members are asked to stop,
// too, when the job has another store. When members tell that none of them holds the state of the job, the job ends.
//
// Members that do not reach each other cannot be in one epoch. When members of the present epoch have told so
// (Unreachable), and all of it are ready or gone, some leave before the next epoch begins, as whom_to_drop() says. They
// are in no later epoch.
//
// A member that joins in order to follow, while an epoch of at least two members is under way that was not asked to
// stop and has a place, does not stop that epoch. The members of the epoch are asked to stop when all members that
// follow it have caught up, cannot follow any more, or are gone. One that cannot follow any more, or has not caught up
// when the epoch ends, may be stuck: it is in no epoch before it has told that it is there.
struct Roster {
  // Where a member stands: it waits for an epoch, takes part in the present one, or has left, died or was refused.
  enum class Standing { waiting, running, gone };
  // One member.
  struct Entry {
    std::string identity;                   // of its process
    std::string host;                       // of its Joined
    Standing standing = Standing::waiting;  // now
    bool leaves = false;                    // it wants to leave
    bool dropped = false;                   // it has to leave
    bool had_state = false;                 // it has begun a step of the job
    bool follows = false;                   // it follows the present epoch, and has not caught up yet
    bool is_awaited = true;                 // false: it has not caught up, and has not told yet that it takes part
  };

  RosterOptions options;                  // of the job; they never change
  std::map<std::int64_t, Entry> members;  // by number; members that are gone stay, so that they are recognized
  std::vector<std::int64_t> current;      // the members of the present epoch, in rank order
  std::int64_t epoch = 0;                 // the present epoch; 0 before the first
  std::int64_t followers = 0;             // how many members have followed the present epoch
  std::vector<Unreachable> unreachable;   // of the present epoch
  bool change_asked = false;              // the members of the present epoch were asked to stop
  bool begun = false;                     // a step of the job has begun
  bool hurried = false;                   // the first epoch needs `min` members only
  bool finished = false;                  // the last step was counted
  bool lost = false;                      // nobody holds the state of the job, so it has ended
  // The present epoch is over, and so many members more have to wait for the next one before it can begin, although
  // some wait already. Always 0 in a replay.
  int lacking = 0;
  std::map<std::int64_t, std::int64_t> roles;  // replay: members of the played job, and who plays them now
  std::string version;                         // the first member's, which the others must have too
  std::string program;                         // the same

  // Whether the job has ended.
  bool is_over() const noexcept { return finished || lost; }
};

// A decision: a key of the store that is set to a value.
struct Put {
  std::string key;
  std::string value;
  bool operator==(const Put&) const = default;
};

// Changes `roster` as event `number` says, and returns the decisions that follow from it, in order. Depends on the
// arguments only. An event that makes no sense (of a member that is unknown or gone) changes nothing.
std::vector<Put> apply(Roster& roster, std::int64_t number, const Event& event);

// The members of the present epoch of which the coordinator waits to hear: others of the epoch are ready or gone
// already. Empty while the epoch runs undisturbed.
std::vector<std::int64_t> awaited(const Roster& roster);

}  // namespace gradwire::membership
