// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What members and coordinator of an elastic job tell each other, as values and as text.
//
// A membership is a numbered epoch: which members take part, in which order. Epochs count from 1. A member is a process
// (or a thread) with a number that no other member of the job ever gets. Members and the coordinator append events to
// one log in the job's store. The coordinator reads the log in order, and puts its decisions under keys of the store.
// docs/format/membership.md has the keys and the texts.
//
// All functions here are pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gradwire/base/deadline.h"

namespace gradwire::membership {

// A process offers itself. The number of this event in the log is the number of the member.
struct Joined {
  std::string identity;  // process_identity()
  std::string version;   // gradwire's
  std::string program;   // the program and its model, as text that members compare
  // The launcher that vouches for the process (host_watch.h); empty: the process runs on the coordinator's host.
  std::string host = {};
  // The process first follows the members of the epoch that is under way, while they train, and then takes part.
  bool follows = false;
  // host_identity() of the process; empty: not known. Several launchers may run on one machine.
  std::string machine = {};
};
// The member follows `epoch`, and is as far as its members are, or takes part without having followed.
struct CaughtUp {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
};
// Told by a member of `epoch`: `member` cannot follow the epoch any more. It may be stuck, so nobody waits for it until
// it tells CaughtUp.
struct CannotFollow {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
};
// The member has left `epoch`, on an error or at an agreed step, and waits for the next one.
struct Ready {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
};
// The member wants to leave in good order: the others should stop at a step boundary.
struct Leaving {
  std::int64_t member = 0;
};
// The member has left for good.
struct Left {
  std::int64_t member = 0;
};
// The member holds the state of the job, and begins `step` as its first step in `epoch`.
struct Began {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};
// The first member of an epoch has counted the step before `step`, so the job has come so far, also where the epoch
// never ends. It says so of the first step of the epoch, the second, the fourth, the eighth and so on.
struct Reached {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};
// The member has counted the last step, and so have all members of its epoch.
struct Done {
  std::int64_t member = 0;
};
// The members of `epoch`, of which the member is one, have found that none of them holds the state of the job.
struct StateLost {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
};
// The member is gone; `how` is for messages.
struct Died {
  std::int64_t member = 0;
  std::string how;
  // Not empty: the member was lost because this host was lost, or leaves the job.
  std::string host = {};
};
// Died::how of a member that has left in good order while it waited for an epoch.
inline constexpr const char* kLeftWaiting = "left while it waited";
// The member was slow in several steps of `epoch` in a row, the last of which was `step` (SlowRule).
struct Slow {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t own_us = 0;     // the member's own time of a step, in the mean
  std::int64_t others_us = 0;  // the median of the others' own times, in the mean
  bool drop = false;           // SlowRule::drop
  std::string host = {};       // the name of the member's host, for messages
};
// The member could not meet the others of `epoch`: nothing comes of `peer`, a member of the same epoch, to it, although
// both told the store that they are there.
struct Unreachable {
  std::int64_t member = 0;
  std::int64_t epoch = 0;
  std::int64_t peer = 0;
};
// The first epoch may begin with RosterOptions::min members.
struct Hurry {};
// The job has another store, with what the journal knew of the old one. The members of the present epoch should meet
// anew: what they wrote for each other is gone.
struct StoreRestored {};

// Any of the above.
using Event = std::variant<Joined, Ready, Leaving, Left, Began, Done, Died, Hurry, Slow, StoreRestored, CaughtUp,
                           CannotFollow, Unreachable, StateLost, Reached>;

// One line of text without its end. Tabs and line ends within a field become spaces.
std::string to_text(const Event& event);
// The event that to_text() wrote, in this version or an earlier one. Throws StoreError for any other text.
Event event_of(const std::string& text);
// The same, but returns nothing for any other text, as that of a later version.
std::optional<Event> known_event_of(const std::string& text);

// One member of an epoch.
struct EpochMember {
  std::int64_t number = 0;  // of the member's Joined
  std::string identity;     // of its process
  std::string host = {};    // of its Joined
  bool operator==(const EpochMember&) const = default;
};

// As for events.
std::string to_text(const EpochMember& member);
EpochMember epoch_member_of(const std::string& text);

// An epoch, or the end of the job in its place.
struct Epoch {
  std::int64_t number = 0;
  bool finished = false;             // the job has ended: its last step was counted; there are no members then
  bool lost = false;                 // the job has ended: nobody holds its state; there are no members then
  bool fresh = true;                 // no step of the job has begun yet, so a member without state is nothing unusual
  bool played = false;               // of a replay: the hosts of the members are those of the job that is played
  std::vector<EpochMember> members;  // in rank order
  bool operator==(const Epoch&) const = default;
};

// Why a job has ended with Epoch::lost, for messages.
inline constexpr const char* kStateIsLost =
    "no member holds the state of the job any more, because all that held it died or left together";

// As for events.
std::string to_text(const Epoch& epoch);
Epoch epoch_of(const std::string& text);

// The keys of the log.
std::string event_key(std::int64_t number);
inline constexpr const char* kEventsEndKey = "events/end";  // the number of an event that exists

// The keys of the coordinator's decisions.
std::string admitted_key(std::int64_t member);  // the first epoch that may have the member
std::string refused_key(std::int64_t member);   // why the member may not take part, or no longer
std::string epoch_key(std::int64_t epoch);      // an Epoch
std::string change_key(std::int64_t epoch);     // the members of the epoch should stop at a step boundary
// Set by the first member that sees the key above: the step before which all members stop.
std::string stop_key(std::int64_t epoch);
std::string lost_key(std::int64_t epoch);  // a member of the epoch is gone: its number
// Set when members of the epoch begin to keep others waiting: for how long from then on the coordinator waits for them;
// empty when they keep nobody waiting any more. `name` makes each text another one.
std::string patience_key(std::int64_t epoch);
std::string patience_text(Milliseconds patience, const std::string& name);
Milliseconds patience_of(const std::string& text);
// The member that follows the epoch as the n-th from 0: an EpochMember.
std::string follower_key(std::int64_t epoch, std::int64_t n);
std::string followed_key(std::int64_t member);  // the epoch that the member should follow
// Set by each member of the epoch, `ready`, when it is ready for `member` to follow.
std::string follow_ready_key(std::int64_t member, std::int64_t ready);
// Set by the last of them: the step from which on the member follows.
std::string follow_from_key(std::int64_t member);
// The member should leave at the boundary at which the epoch stops, or at once where it waits for an epoch:
// kDroppedSlow where it is slow, else why, as part of a sentence.
std::string dropped_key(std::int64_t member);
inline constexpr const char* kDroppedSlow = "1";
inline constexpr const char* kSlowRuleKey = "job/slow";  // the SlowRule of all members, in place of their own
// The keys of host_watch.h.
std::string beat_key(const std::string& host);         // how often the launcher has said that it is there
std::string bye_key(const std::string& host);          // the launcher has left
inline constexpr const char* kHostsKey = "hosts";      // how many launchers have joined
inline constexpr const char* kStoreKey = "job/store";  // a text that no other store of the job has
inline constexpr const char* kEndedKey = "job/ended";  // why the launcher with the store ended the job

}  // namespace gradwire::membership
