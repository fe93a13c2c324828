// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/member.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/host_identity.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/patient_store.h"
#include "gradwire/membership/stored_values.h"
#include "gradwire/store/stored_number.h"

namespace gradwire::membership {
namespace {

// Within this time a member that waits for an epoch sees that it was refused; later within the second one, because a
// wait may be long (members that train separately meet seldom), and the link to the store slow.
constexpr Milliseconds kLook{50};
constexpr Milliseconds kSeldomLook{250};
constexpr Milliseconds kLongWait{1000};
// And within this one that the store has lost what the member told.
constexpr Milliseconds kTellAgain{1000};
// How long the coordinator may take to decide after its own patience.
constexpr Milliseconds kToDecide{10000};
// The last word of a member: its program has its result, and must not wait long for a coordinator that is gone.
constexpr Milliseconds kLastWord{10000};

std::shared_ptr<Store> required(std::shared_ptr<Store> store) {
  if (store == nullptr) throw InvalidArgument("a member of an elastic job: the store is null");
  return store;
}

// Of this process, as far as it can be told.
std::string machine_here() {
  try {
    return host_identity();
  } catch (const ResourceError&) {
    return "";
  }
}

// Whether the store does not hold what was told under this number. In a store that came instead of another one, the
// number may be that of another event.
bool is_lost(const Event& event, std::int64_t number, EventLog& log) {
  return log.read(number, Milliseconds(0)) != to_text(event);
}

PeerError state_is_lost_error() {
  return PeerError(concat("Elastic::run(): ", kStateIsLost, "; start the job again from a checkpoint"), {});
}

}  // namespace

Member::Member(std::shared_ptr<Store> store, std::string program, Milliseconds timeout, std::function<bool()> gives_up,
               std::string host, bool follows)
    : store_(required(std::move(store))),
      timeout_(timeout),
      gives_up_(std::move(gives_up)),
      log_(store_),
      identity_(process_identity()),
      host_(std::move(host)) {
  tell(Joined{identity_, GRADWIRE_VERSION, std::move(program), host_, follows, machine_here()});
  try {
    be_admitted();
  } catch (const StoreError&) {
    throw;  // there is nobody to tell
  } catch (...) {
    // The coordinator would put it into an epoch later, and the others would wait for it.
    if (!out_) give_up_joining(log_);
    throw;
  }
}

void Member::give_up_joining(EventLog& log) noexcept {
  try {
    // In another store the number may be that of another member.
    if (is_lost(told_.event, told_.number, log)) return;
    log.append(Died{number_, "gave up before the coordinator knew it"});
  } catch (const std::exception& error) {
    log::warn(concat("a member could not tell its elastic job that it gave up joining: ", error.what()));
  }
}

Member::~Member() {
  if (out_ || !owner_.is_current()) return;
  try {
    EventLog log(without_patience(store_));  // whoever ends may have waited for the store already
    leave(log);
  } catch (const std::exception& error) {
    log::warn(concat("a member could not tell its elastic job that it leaves: ", error.what()));
  }
}

bool Member::be_admitted() {
  try {
    while (next_ == 0) {
      const std::optional<std::string> next = wait_for([this] { return admitted_key(number_); });
      if (!next) return false;
      if (!tell_again_if_lost()) next_ = stored_number(admitted_key(number_), *next);
    }
  } catch (const PeerError& refused) {
    throw MismatchError(refused.what());
  }
  return true;
}

void Member::tell(const Event& event, EventLog& log) {
  tell_beginning_again_if_lost(log);
  told_ = {event, log.append(event)};
  if (std::holds_alternative<Joined>(event)) number_ = told_.number;
}

bool Member::tell_again_if_lost(EventLog& log) {
  if (!is_lost(told_.event, told_.number, log)) return false;
  log::info(
      concat("member ", number_, " of the elastic job tells the coordinator again what the job's store has lost"));
  tell(Event(told_.event), log);
  return true;
}

void Member::tell_beginning_again_if_lost(EventLog& log) {
  if (began_ && is_lost(began_->event, began_->number, log)) began_->number = log.append(began_->event);
}

std::optional<std::string> Member::wait_for(const std::function<std::string()>& key) {
  const auto begin = Deadline::Clock::now();
  Deadline deadline = Deadline::after(timeout_);
  std::string patience;  // the last that was granted
  Deadline next_look = Deadline::after(kTellAgain);
  const Deadline long_wait = Deadline::after(kLongWait);
  while (true) {
    const Milliseconds look = long_wait.expired() ? kSeldomLook : kLook;
    if (std::optional<std::string> value = value_of(*store_, key(), std::min(look, deadline.remaining()))) return value;
    if (const auto why = value_of(*store_, refused_key(number_))) {
      if (next_ == 0 && tell_again_if_lost()) continue;  // it was another process that was refused
      out_ = true;
      throw PeerError(concat("member ", number_, " of the elastic job was refused: ", *why), {});
    }
    if (was_dropped() || (gives_up_ && gives_up_())) return std::nullopt;
    throw_if_interrupted("waiting for an epoch of the elastic job");
    if (deadline.expired()) {
      // The coordinator itself waits, for a member that may hang, and decides without it then.
      if (const auto granted = value_of(*store_, patience_key(next_ - 1));
          granted && !granted->empty() && *granted != patience) {
        patience = *granted;
        deadline = Deadline::after(patience_of(patience) + kToDecide);
        continue;
      }
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Deadline::Clock::now() - begin);
      throw TimeoutError(concat("member ", number_, " of the elastic job waited ", waited.count(), " s for '", key(),
                                "'; is the coordinator gone, or are there too few members?"));
    }
    if (!next_look.expired()) continue;
    tell_again_if_lost();
    next_look = Deadline::after(kTellAgain);
  }
}

std::optional<Epoch> Member::meet() {
  waits_ = true;
  if (epoch_.number > 0) tell(Ready{number_, epoch_.number});
  change_wanted_ = false;
  stop_.reset();
  if (!be_admitted()) return std::nullopt;
  while (true) {
    const std::optional<std::string> text = wait_for([this] { return epoch_key(next_); });
    if (!text) return std::nullopt;
    Epoch epoch = epoch_of(*text);
    ++next_;
    if (epoch.finished || epoch.lost) out_ = true;
    if (epoch.lost) {
      tell_late_launcher(epoch.number - 1);
      throw state_is_lost_error();
    }
    if (epoch.finished) {
      job_has_finished_ = true;
      return std::nullopt;
    }
    const auto mine = [&](const EpochMember& member) {
      return member.number == number_ && member.identity == identity_;
    };
    if (std::none_of(epoch.members.begin(), epoch.members.end(), mine)) continue;
    epoch_ = std::move(epoch);
    began_.reset();
    waits_ = false;
    return epoch_;
  }
}

std::optional<Epoch> Member::wait_to_follow() {
  if (!be_admitted()) return std::nullopt;
  const std::string key = followed_key(number_);
  const std::optional<std::string> followed = value_of(*store_, key);
  if (!followed) return std::nullopt;
  followed_ = stored_number(key, *followed);
  if (followed_ == 0) return std::nullopt;
  const Deadline deadline = Deadline::after(timeout_);
  while (!value_of(*store_, follow_from_key(number_), kLook)) {
    // When it was refused, meet() will say why.
    if (followed_epoch_ends() || is_there(*store_, refused_key(number_)) || deadline.expired() ||
        (gives_up_ && gives_up_()))
      return std::nullopt;
    throw_if_interrupted("waiting to follow an epoch of the elastic job");
  }
  Epoch epoch = epoch_of(store_->get(epoch_key(followed_)));
  epoch.members.push_back({number_, identity_, host_});
  return epoch;
}

bool Member::followed_epoch_ends() {
  const std::array<std::string, 3> ends{epoch_key(followed_ + 1), lost_key(followed_), change_key(followed_)};
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return is_there(*store_, end); });
}

void Member::caught_up() {
  if (followed_ > 0) tell(CaughtUp{number_, followed_});
}

std::optional<EpochMember> Member::follower(std::int64_t n) {
  const std::optional<std::string> text = value_of(*store_, follower_key(epoch_.number, n));
  return text ? std::optional(epoch_member_of(*text)) : std::nullopt;
}

void Member::ready_for(std::int64_t follower, std::int64_t step) {
  store_->set(follow_ready_key(follower, number_), "");
  std::vector<std::string> all;
  for (const EpochMember& member : epoch_.members) all.push_back(follow_ready_key(follower, member.number));
  // The others cannot have passed the boundary after this one: the step before it needs this member.
  if (store_->check(all)) store_->compare_set(follow_from_key(follower), "", std::to_string(step + 1));
}

bool Member::follows_from(std::int64_t follower, std::int64_t step) {
  const std::string key = follow_from_key(follower);
  const std::optional<std::string> from = value_of(*store_, key);
  return from && step == stored_number(key, *from);
}

void Member::give_up_follower(std::int64_t follower) { log_.append(CannotFollow{follower, epoch_.number}); }

int Member::rank() const {
  const auto place = std::find_if(epoch_.members.begin(), epoch_.members.end(),
                                  [&](const EpochMember& member) { return member.number == number_; });
  GRADWIRE_CHECK(place != epoch_.members.end());
  return static_cast<int>(place - epoch_.members.begin());
}

void Member::began(std::int64_t step) {
  const Event event = Began{number_, epoch_.number, step};
  began_ = {event, log_.append(event)};
}

void Member::reached(std::int64_t step) { log_.append(Reached{number_, epoch_.number, step}); }

bool Member::stops_before(std::int64_t step, std::int64_t boundary) {
  if (!change_wanted_) {
    change_wanted_ = is_there(*store_, change_key(epoch_.number));
    if (!change_wanted_) return false;
  }
  // What was agreed is said again to a store that has lost it.
  const std::string mine = std::to_string(stop_.value_or(boundary));
  const std::string key = stop_key(epoch_.number);
  stop_ = stored_number(key, store_->compare_set(key, "", mine));
  return step >= *stop_;
}

std::optional<SlowRule> Member::slow_rule() {
  const std::optional<std::string> text = value_of(*store_, kSlowRuleKey);
  return text ? std::optional(slow_rule_of(*text)) : std::nullopt;
}

void Member::report_slow(const membership::SlowRank& slow, bool drop, const std::string& host) {
  log_.append(Slow{number_, epoch_.number, slow.step, slow.own_us, slow.others_us, drop, host});
}

bool Member::was_dropped() { return is_there(*store_, dropped_key(number_)); }

std::string Member::why_dropped() {
  std::string why = store_->get(dropped_key(number_));
  return why == kDroppedSlow ? "it is slow" : why;
}

void Member::report_unreachable(const std::vector<int>& ranks) {
  for (const int rank : ranks)
    log_.append(Unreachable{number_, epoch_.number, epoch_.members.at(static_cast<std::size_t>(rank)).number});
}

void Member::ask_to_leave() { log_.append(Leaving{number_}); }

void Member::leave() { leave(log_); }

void Member::leave(EventLog& log) {
  out_ = true;
  tell_beginning_again_if_lost(log);
  if (next_ == 0) {
    give_up_joining(log);
  } else if (fails_) {
    log.append(Died{number_, "failed"});
  } else if (waits_) {
    log.append(Died{number_, kLeftWaiting});
  } else {
    log.append(Left{number_});
  }
}

void Member::done() { end_job(Done{number_}, "has finished"); }

PeerError Member::state_is_lost() {
  end_job(StateLost{number_, epoch_.number}, "has lost its state");
  return state_is_lost_error();
}

// A host that has joined since then reads the log from there on.
void Member::tell_late_launcher(std::int64_t epoch) const noexcept {
  try {
    EventLog(without_patience(store_)).append(StateLost{number_, epoch});
  } catch (const std::exception& error) {
    log::info(concat("a member could not repeat that its elastic job has lost its state: ", error.what()));
  }
}

void Member::end_job(const Event& last, const char* what) {
  out_ = true;
  const Deadline patience = Deadline::after(std::min(timeout_, kLastWord));
  const std::shared_ptr<Store> store = without_patience(store_);
  EventLog log(store);
  bool has_told = false;
  std::string problem = "is it gone?";
  Deadline next_look = Deadline::after(Milliseconds(0));
  do {
    try {
      if (next_look.expired()) {
        if (has_told) {
          tell_again_if_lost(log);
        } else {
          tell(last, log);
        }
        has_told = true;
        next_look = Deadline::after(kTellAgain);
      }
      if (value_of(*store, epoch_key(epoch_.number + 1), std::min(kSeldomLook, patience.remaining()))) return;
    } catch (const StoreError& error) {
      problem = error.what();
      std::this_thread::sleep_for(std::min(kLook, patience.remaining()));
    } catch (const std::exception& error) {
      problem = error.what();
      break;
    }
  } while (!patience.expired());
  log::warn(concat("member ", number_, ": the elastic job ", what,
                   ", but its coordinator has not written that down: ", problem));
}

}  // namespace gradwire::membership
