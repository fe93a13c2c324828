// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A member's side of an elastic job: joins, learns of epochs, and leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/records.h"
#include "gradwire/membership/slow_ranks.h"
#include "gradwire/store/store.h"

namespace gradwire::membership {

// The job may get another store behind `store`, with what the journal knew of the old one: what this member had told
// the coordinator and the journal lacks is told again while the member waits, and that it began an epoch as it leaves
// the epoch.
//
// One thread at a time uses the object. All methods throw what the store throws. A method that waits for the
// coordinator waits as long as `timeout`, and throws TimeoutError then; it waits longer where the coordinator itself
// still waits for a member that keeps the others waiting. While it waits, it asks `gives_up` (where one
// is given) at least every 250 ms, and stops waiting when `gives_up` returns true.
class Member {
 public:
  // Joins the job whose coordinator uses `store`, and waits until the coordinator knows the member. `program` is text
  // that says which program and model this is; it must be the same on all members. Throws MismatchError, with the
  // coordinator's reason, when the member is refused; InvalidArgument for a null store. When `gives_up` ends the wait,
  // meet() waits for the coordinator first. `host`: Joined::host; `follows`: Joined::follows.
  Member(std::shared_ptr<Store> store, std::string program, Milliseconds timeout = kDefaultTimeout,
         std::function<bool()> gives_up = nullptr, std::string host = {}, bool follows = false);
  // Leaves, unless leave() or done() was called.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // For a member that joined in order to follow, before meet(): waits until the members of the epoch under way let it
  // follow, and returns that epoch with this member as one more, the last. Returns nothing when it cannot follow: then
  // caught_up() and meet().
  std::optional<Epoch> wait_to_follow();
  // Whether the epoch that wait_to_follow() returned has ended, or its members stop at a boundary.
  bool followed_epoch_ends();
  // Tells that this member is as far as the members of the epoch that it follows, or follows no longer.
  void caught_up();

  // Leaves the present epoch, if there is one, and waits for the next epoch with this member. Returns nothing when the
  // job has finished, when this member was dropped, and when `gives_up` ended the wait; job_has_finished() and
  // was_dropped() tell which. After the last, leave() or meet() again. Throws PeerError when the coordinator went on
  // without this member (it was taken for dead), and when the job has ended because nobody held its state.
  std::optional<Epoch> meet();
  bool job_has_finished() const noexcept { return job_has_finished_; }
  // The last epoch that meet() returned; its number is 0 before the first.
  const Epoch& epoch() const noexcept { return epoch_; }
  // This member's place in that epoch.
  int rank() const;
  std::int64_t number() const noexcept { return number_; }

  // Tells that this member holds the job's state and begins `step` as its first step in this epoch.
  void began(std::int64_t step);
  // Tells that the step before `step` was counted. For the first member of the epoch, of some steps of it (Reached).
  void reached(std::int64_t step);
  // The members of an epoch stop at the same step boundary when the coordinator asks for it, so that no step is broken
  // off. Each calls stops_before() at the boundary before each step, with the step's number. Returns whether this
  // member stops now, and calls meet() instead of the step. No member is further than the step that the slowest one
  // does, because each step needs all members; so the first member that sees the coordinator's wish names the boundary
  // after the next step. Costs one look into the store.
  bool stops_before(std::int64_t step) { return stops_before(step, step + 1); }
  // The same for members of which some may be further: `boundary` is the first one that no member can pass before this
  // member does its step. Each member calls at all boundaries.
  bool stops_before(std::int64_t step, std::int64_t boundary);

  // The member that follows this epoch as the n-th from 0, if there is one. Costs one look into the store.
  std::optional<EpochMember> follower(std::int64_t n);
  // Tells that this member is ready for `follower` to follow, at the boundary before `step`. Each member of the epoch
  // calls once, and the follower follows from the step on that comes after the one before which the last member calls.
  void ready_for(std::int64_t follower, std::int64_t step);
  // Returns whether `follower` follows from `step` on. Each member of the epoch calls at the boundary before each step,
  // after ready_for(), so the answer is true at the same boundary for all.
  bool follows_from(std::int64_t follower, std::int64_t step);
  // Tells that `follower` cannot follow this epoch any more, whether it knows that or not: nobody waits for it until it
  // calls caught_up().
  void give_up_follower(std::int64_t follower);

  // Asks the others to stop at a step boundary, because this member wants to leave. Go on until stops_before() says so.
  void ask_to_leave();
  // The rule for slow members that the coordinator gives to all members; nothing when it gives none.
  std::optional<SlowRule> slow_rule();
  // Tells that this member is slow in this epoch.
  void report_slow(const membership::SlowRank& slow, bool drop, const std::string& host);
  // Tells that this member did not reach `ranks` of this epoch, as the epoch's members met.
  void report_unreachable(const std::vector<int>& ranks);
  // Whether this member has to leave. meet() returns nothing then. Costs one look into the store.
  bool was_dropped();
  // Why, as part of a sentence: "it is slow". Call after was_dropped() has said so.
  std::string why_dropped();

  // Leaves for good. A member that has not learned of its next epoch may be in one that was just decided, so it leaves
  // as one that has died: the others of that epoch are told.
  void leave();
  // This member's program has failed: when this object goes, the member leaves as one that has died, so that launchers
  // count it among the deaths.
  void fails() noexcept { fails_ = true; }
  // Tells that all members of this epoch have counted the last step, and waits until the coordinator has written that
  // down. This member is no longer one. Throws nothing: when the coordinator or the store is gone, it warns after
  // 10 s, whatever the patience of the store.
  void done();
  // Tells that no member of this epoch holds the state of the job, which ends the job, and then as done(). Returns the
  // error to throw.
  PeerError state_is_lost();

 private:
  // Returns false when `gives_up` ended the wait.
  bool be_admitted();
  // Where a log is given, it is the job's, with or without patience.
  void give_up_joining(EventLog& log) noexcept;
  void leave(EventLog& log);
  // Says again that the members of `epoch` have found that nobody holds the state.
  void tell_late_launcher(std::int64_t epoch) const noexcept;
  // Tells `last`, which ends the job, and waits as done() says. `what` the coordinator has to write down: for the log.
  void end_job(const Event& last, const char* what);
  // The value of the key that `key` names; nothing when this member was dropped, or `gives_up` ended the wait.
  std::optional<std::string> wait_for(const std::function<std::string()>& key);
  // What was told, and the number of the event.
  struct Told {
    Event event;
    std::int64_t number = 0;
  };
  // Tells the coordinator.
  void tell(const Event& event) { tell(event, log_); }
  void tell(const Event& event, EventLog& log);
  // Tells the last event again when the store has lost it. Returns whether it did.
  bool tell_again_if_lost() { return tell_again_if_lost(log_); }
  bool tell_again_if_lost(EventLog& log);
  // Tells again that this member began the present epoch, where the store has lost that: the job is not at its
  // beginning any more, and who plays it again needs the epoch.
  void tell_beginning_again_if_lost(EventLog& log);

  const std::shared_ptr<Store> store_;
  const Milliseconds timeout_;
  const std::function<bool()> gives_up_;
  EventLog log_;
  OwnerProcess owner_;
  Told told_;                  // the last event for whose effect this member waits
  std::optional<Told> began_;  // of the present epoch, until the next one
  const std::string identity_;
  const std::string host_;
  std::int64_t number_ = 0;
  std::int64_t next_ = 0;  // the epoch to look for; 0 until the coordinator has admitted this member
  Epoch epoch_;
  std::int64_t followed_ = 0;  // the epoch that this member may follow
  bool change_wanted_ = false;
  std::optional<std::int64_t> stop_;  // the boundary at which this epoch stops, once this member knows it
  bool waits_ = true;                 // for an epoch that it has not learned of yet
  bool job_has_finished_ = false;
  bool fails_ = false;
  bool out_ = false;  // left, done or refused
};

}  // namespace gradwire::membership
