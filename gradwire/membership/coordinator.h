// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic job: reads the events of the members, and decides the epochs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/host_watch.h"
#include "gradwire/membership/journal.h"
#include "gradwire/membership/records.h"
#include "gradwire/membership/roster.h"
#include "gradwire/membership/slow_ranks.h"
#include "gradwire/store/store.h"

namespace gradwire::membership {

// The journal belongs to a job with one set of `roster` options; the other options may change.
struct CoordinatorOptions {
  RosterOptions roster;  // how many members an epoch has
  std::string journal;   // the path of the journal's file
  // How long the first epoch waits for RosterOptions::first members, from the first that joins. With `min` members or
  // more it begins then.
  Milliseconds first_wait = std::chrono::minutes(2);
  // A member from which nothing was heard for so long, while another member waits for it, is taken for dead. A process
  // that has ended on this host is noticed at once. Longer than the longest step, then: members in a step say nothing.
  Milliseconds stall_timeout = std::chrono::minutes(2);
  // A host other than this one whose launcher is not heard of for so long (host_watch.h) is gone, and its members are
  // dead.
  Milliseconds host_timeout = std::chrono::seconds(10);
  // How long members wait for others before the user is told that they are fewer than RosterOptions::min: a process
  // that takes the place of a dead one needs some time.
  Milliseconds shortage_wait = std::chrono::seconds(10);
  // The rule for slow members, for all members in place of their own.
  std::optional<SlowRule> slow = std::nullopt;
  // Called by step() with a sentence for the user, when a member is slow, when members do not reach each other, and
  // when there are too few.
  std::function<void(const std::string& sentence)> tell = nullptr;
};

// A coordinator may be killed at any moment and started again, over the same store and the same journal: it goes on
// where it was. While there is no coordinator, a job trains on until its membership has to change; then its members
// wait. One thread at a time uses the object.
class Coordinator {
 public:
  // Shares the ownership of `store`, whose keys are the job's alone; reads the journal, and publishes the last
  // decisions again. Throws InvalidArgument when the options are not valid or another coordinator serves the job;
  // StoreError when the store lacks the last event of the journal; and what Journal::Journal() and the store throw.
  Coordinator(std::shared_ptr<Store> store, CoordinatorOptions options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Handles one event, and waits for it up to `wait`. Without an event, looks for members that have died, and reports
  // them as events. Returns whether there was an event. Throws what the journal and the store throw; a later call goes
  // on where that one failed.
  bool step(Milliseconds wait);
  // How long step() may wait before the next look for members that have died: short while the others wait for them.
  Milliseconds next_wait() const;
  // Handles events until `stop` is true. `stop` is looked at at least every 100 ms.
  void run(const std::atomic<bool>& stop);

  // What the events that were handled so far add up to.
  const Roster& roster() const noexcept { return journal_.roster(); }
  // Whether the last step() failed because there is no room for the journal.
  bool has_full_journal() const noexcept { return has_full_journal_; }

 private:
  // An event that is in the journal, until the store has what follows from it.
  struct Unfinished {
    std::optional<Event> event;            // empty: a text that is no event
    std::size_t late_before = 0;           // set_deadlines()
    std::vector<Unreachable> unreachable;  // Roster::unreachable before the event
  };

  void require_last_event();
  void publish();
  // Starts and ends the two waits below, after an event and at the beginning. `late_before`: the number of members
  // that kept another one waiting before the event.
  void set_deadlines(std::size_t late_before);
  void look_for_the_dead();
  void look_for_silent_hosts();
  // Begins or ends the wait for more members, after an event.
  void note_shortage();
  void tell_of_shortage();
  void tell_of(const Slow& event) const;
  // What was decided about members that told that they do not reach others.
  void tell_of(const std::vector<Unreachable>& told);

  const std::shared_ptr<Store> store_;
  const CoordinatorOptions options_;
  const std::string identity_;
  EventLog log_;
  Journal journal_;
  std::optional<Unfinished> unfinished_;
  bool has_full_journal_ = false;
  HostBeats beats_;
  Deadline next_host_look_ = Deadline::after(Milliseconds(0));
  Deadline first_wait_ = Deadline::never();
  Deadline stall_ = Deadline::never();
  std::int64_t waits_ = 0;                 // how often that wait has begun
  std::int64_t patient_epoch_ = 0;         // whose members know of that wait; 0: none
  std::string last_told_;                  // of members that do not reach each other
  Deadline shortage_ = Deadline::never();  // when to tell of it; never: it was told, or there is none
  bool is_short_ = false;                  // whether members waited for others after the last event
};

}  // namespace gradwire::membership
