// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/coordinator.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"

namespace gradwire::membership {
namespace {

constexpr const char* kCoordinatorKey = "coordinator";

// How often the coordinator looks for members that have died: often while the others wait for them.
constexpr Milliseconds kLookSoon{5};
constexpr Milliseconds kLook{100};

std::shared_ptr<Store> required(std::shared_ptr<Store> store) {
  if (store == nullptr) throw InvalidArgument("the coordinator of an elastic job: the store is null");
  return store;
}

void claim(Store& store, const std::string& identity) {
  std::string holder = store.compare_set(kCoordinatorKey, "", identity);
  while (holder != identity) {
    if (!holder.empty() && may_be_alive(holder)) {
      throw InvalidArgument(concat("this elastic job has a coordinator already, ", describe_process(holder),
                                   "; a job has one coordinator, and the other one has to end first"));
    }
    holder = store.compare_set(kCoordinatorKey, holder, identity);
  }
}

// The awaited members that keep another one waiting. A death alone makes nobody wait: the others may be in a long step.
std::vector<std::int64_t> late_members(const Roster& roster) {
  const bool any_waits = std::any_of(roster.current.begin(), roster.current.end(), [&](std::int64_t member) {
    return roster.members.at(member).standing == Roster::Standing::waiting;
  });
  return any_waits ? awaited(roster) : std::vector<std::int64_t>{};
}

}  // namespace

Coordinator::Coordinator(std::shared_ptr<Store> store, CoordinatorOptions options)
    : store_(required(std::move(store))),
      options_(std::move(options)),
      identity_(process_identity()),
      log_(store_),
      journal_(options_.journal, options_.roster) {
  if (options_.slow) require_valid(*options_.slow);
  require_last_event();
  claim(*store_, identity_);
  if (options_.slow) store_->set(kSlowRuleKey, to_text(*options_.slow));
  publish();
  set_deadlines(0);
}

Coordinator::~Coordinator() {
  try {
    store_->compare_set(kCoordinatorKey, identity_, "");
  } catch (const std::exception&) {
    // The store is gone, and with it the job.
  }
}

// restored_store() reads the journal before this coordinator locks it. Another one may have written to it meanwhile.
void Coordinator::require_last_event() {
  if (journal_.last_event() == 0) return;
  const std::optional<std::string> event = log_.read(journal_.last_event(), Milliseconds(0));
  if (event && journal_.last_event_is(*event)) return;
  throw StoreError(concat("the job's store does not hold event ", journal_.last_event(), " of the journal ",
                          options_.journal,
                          ": another coordinator wrote to the journal while the store was made from it; "
                          "start again"));
}

void Coordinator::publish() {
  for (const Put& put : journal_.last_decisions()) store_->set(put.key, put.value);
  if (journal_.last_event() > 0) log_.note_end(journal_.last_event());
}

bool Coordinator::step(Milliseconds wait) {
  has_full_journal_ = false;
  if (!unfinished_) {
    const std::optional<std::string> text = log_.read(journal_.last_event() + 1, wait);
    if (!text) {
      look_for_the_dead();
      return false;
    }
    Unfinished begun{known_event_of(*text), late_members(roster()).size(), roster().unreachable};
    try {
      journal_.append(journal_.last_event() + 1, *text);
    } catch (const StoreError&) {
      has_full_journal_ = journal_.is_full();
      throw;
    }
    unfinished_ = std::move(begun);
  }
  publish();
  set_deadlines(unfinished_->late_before);
  const Unfinished done = *std::exchange(unfinished_, std::nullopt);
  if (done.event && std::holds_alternative<Slow>(*done.event)) tell_of(std::get<Slow>(*done.event));
  if (!done.unreachable.empty() && roster().unreachable.empty()) tell_of(done.unreachable);
  return true;
}

void Coordinator::set_deadlines(std::size_t late_before) {
  if (roster().epoch > 0) {
    first_wait_ = Deadline::never();
  } else if (first_wait_.point() == Deadline::never().point() && !roster().members.empty()) {
    first_wait_ = Deadline::after(options_.first_wait);
  }
  note_shortage();
  const std::size_t late = late_members(roster()).size();
  if (late == 0) {
    stall_ = Deadline::never();
    if (patient_epoch_ > 0 && patient_epoch_ == roster().epoch) store_->set(patience_key(patient_epoch_), "");
    patient_epoch_ = 0;
  } else if (late != late_before || stall_.point() == Deadline::never().point()) {
    store_->set(patience_key(roster().epoch), patience_text(options_.stall_timeout, concat(identity_, " ", ++waits_)));
    stall_ = Deadline::after(options_.stall_timeout);
    patient_epoch_ = roster().epoch;
  }
}

// Before the first epoch the members wait for first_wait.
void Coordinator::note_shortage() {
  const bool is_short = roster().lacking > 0 && (roster().epoch > 0 || roster().hurried);
  if (std::exchange(is_short_, is_short) == is_short) return;
  shortage_ = is_short ? Deadline::after(options_.shortage_wait) : Deadline::never();
}

void Coordinator::tell_of_shortage() {
  shortage_ = Deadline::never();
  if (!options_.tell) return;
  const int present = roster().options.min - roster().lacking;
  options_.tell(concat("the job stands still: ", present, present == 1 ? " rank waits" : " ranks wait",
                       " for others, and a step needs at least ", roster().options.min, " (MIN); it goes on when ",
                       roster().lacking, " more ", roster().lacking == 1 ? "joins" : "join"));
}

void Coordinator::tell_of(const Slow& event) const {
  const auto place = std::find(roster().current.begin(), roster().current.end(), event.member);
  if (!options_.tell || place == roster().current.end() || event.epoch != roster().epoch) return;
  const auto milliseconds = [](std::int64_t us) { return static_cast<double>(us / 100) / 10; };
  std::string what;
  if (event.drop && roster().options.replay.empty()) {
    const bool dropped = roster().members.at(event.member).dropped;
    what = dropped ? "; it leaves the job"
                   : concat("; it stays, because fewer than ", roster().options.min, " others would be left");
  }
  options_.tell(concat("rank ", place - roster().current.begin(), " (member ", event.member, ", ",
                       describe_process(roster().members.at(event.member).identity), " on host ", event.host,
                       ") is slow: its own part of a step took ", milliseconds(event.own_us),
                       " ms, and that of the other ranks ", milliseconds(event.others_us),
                       " ms (the median), in the mean of the last steps up to step ", event.step, what));
}

void Coordinator::tell_of(const std::vector<Unreachable>& told) {
  std::set<std::int64_t> dropped;
  for (const Put& put : journal_.last_decisions()) {
    for (const auto& [number, entry] : roster().members) {
      if (entry.dropped && put.key == dropped_key(number)) dropped.insert(number);
    }
  }
  const auto goes_on = [this](std::int64_t member) {
    return std::find(roster().current.begin(), roster().current.end(), member) != roster().current.end();
  };
  // Who has died meanwhile was unreachable for that reason.
  const auto pair = std::find_if(told.begin(), told.end(), [&](const Unreachable& each) {
    if (!dropped.empty()) return dropped.contains(each.member) || dropped.contains(each.peer);
    return goes_on(each.member) && goes_on(each.peer);
  });
  if (pair == told.end()) return;
  const auto name = [this](std::int64_t member) {
    const auto entry = roster().members.find(member);
    if (entry == roster().members.end()) return concat("member ", member);
    const std::string& host = entry->second.host;
    return concat("member ", member, " (", describe_process(entry->second.identity),
                  host.empty() ? "" : concat(" on host ", host), ")");
  };
  std::vector<std::string> gone;
  for (const std::int64_t member : dropped) gone.push_back(std::to_string(member));
  const std::string what = concat(name(pair->member), " and ", name(pair->peer), " do not reach each other");
  std::string sentence =
      gone.empty()
          ? concat(what, ", and the job cannot go on without either of them; it goes on trying")
          : concat(what, "; the job goes on without ", gone.size() == 1 ? "member " : "members ", join(gone, ", "));
  if (sentence == last_told_) return;  // they try again and again
  last_told_ = std::move(sentence);
  if (options_.tell) options_.tell(last_told_);
}

void Coordinator::look_for_the_dead() {
  for (const auto& [number, entry] : roster().members) {
    // The launcher of another host reports the deaths there.
    if (entry.standing == Roster::Standing::gone || !entry.host.empty() || may_be_alive(entry.identity)) continue;
    log_.append(Died{number, concat("has ended (", describe_process(entry.identity), ")")});
  }
  if (next_host_look_.expired()) look_for_silent_hosts();
  if (stall_.expired()) {
    for (const std::int64_t member : late_members(roster())) {
      log_.append(Died{member, concat("was not heard of for ", options_.stall_timeout.count() / 1000,
                                      " s while another member waited for it")});
    }
  }
  if (first_wait_.expired() && !roster().hurried) log_.append(Hurry{});
  if (shortage_.expired()) tell_of_shortage();
}

void Coordinator::look_for_silent_hosts() {
  next_host_look_ = Deadline::after(options_.host_timeout / 20);
  std::map<std::string, std::vector<std::int64_t>> members;
  for (const auto& [number, entry] : roster().members) {
    if (entry.standing != Roster::Standing::gone && !entry.host.empty()) members[entry.host].push_back(number);
  }
  std::vector<std::string> hosts;
  for (const auto& [name, numbers] : members) hosts.push_back(name);
  for (const std::string& silent : beats_.silent(*store_, hosts, options_.host_timeout)) {
    const std::string how = concat("runs on host ", silent, ", which was not heard of for ",
                                   static_cast<double>(options_.host_timeout.count()) / 1000, " s");
    for (const std::int64_t number : members.at(silent)) log_.append(Died{number, how, silent});
  }
}

Milliseconds Coordinator::next_wait() const { return awaited(roster()).empty() ? kLook : kLookSoon; }

void Coordinator::run(const std::atomic<bool>& stop) {
  while (!stop) step(next_wait());
}

}  // namespace gradwire::membership
