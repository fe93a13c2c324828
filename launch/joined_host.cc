// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/joined_host.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "launch/elastic_keys.h"
#include "launch/judgement.h"
#include "launch/launch_error.h"
#include "launch/rank_environment.h"
#include "launch/say.h"
#include "launch/store_access.h"

namespace gradwire::launch {
namespace {

// Between two looks at the processes of this host: the others of the job wait until a death is reported.
constexpr Milliseconds kLook{10};
// Between two talks to the store; less with a short heartbeat timeout.
constexpr Milliseconds kTalk{1000};
// The user hears of a store that has not answered for so long since a talk was due.
constexpr Milliseconds kSilence{1000};
// How long the store may take for an answer: the heartbeat timeout has room for several questions.
constexpr Milliseconds kLeastAnswerTime{1000};
constexpr Milliseconds kAnswerTime{3000};
// How long a host that leaves reads on in a long log of events.
constexpr Milliseconds kLeaveTime{3000};

std::string address_of(const NodeOptions& node) { return membership::job_address(node.host, node.port); }

[[noreturn]] void refuse(const std::string& sentence) { throw LaunchError(kHostsFailedExit, sentence); }

std::shared_ptr<Store> connect(const NodeOptions& node, const std::string& secret, SignalQueue& signals) {
  const auto check = [&] {
    if (const auto signal = signals.next_that_ends())
      throw LaunchError(128 + *signal, "interrupted before the job was found");
  };
  auto store = membership::job_part(find_store(
      {.host = node.host, .port = node.port, .secret = secret}, membership::key_in_whole(kVersionKey),
      node.rendezvous_timeout, check,
      {.not_let_in = {concat("this host cannot join the job at ", address_of(node)), ""},
       .not_found = {concat("no elastic job was found at ", address_of(node)),
                     "; is it started with --elastic and --rendezvous, and does a firewall let that port through?"}}));
  // So that the thread notices in time that nobody answers, and leave() does not wait long for the thread.
  store->set_timeout(std::clamp(node.heartbeat_timeout / 3, kLeastAnswerTime, kAnswerTime));
  return store;
}

}  // namespace

JoinedHost::JoinedHost(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals)
    : node_(node), store_(connect(node, secret, signals)) {
  if (const std::string version = store_->get(kVersionKey); version != GRADWIRE_VERSION) {
    refuse(concat("the job at ", address_of(node), " runs gradwire ", version, ", and this host gradwire ",
                  GRADWIRE_VERSION, "; install one version on all hosts"));
  }
  job_id_ = store_->get(kIdKey);
  if (!node.job_id.empty() && node.job_id != job_id_) {
    refuse(concat("the job at ", address_of(node), " is '", job_id_, "', and this host was started with --job-id ",
                  node.job_id));
  }
  run_id_ = store_->compare_set(kRunKey, "", random_job_id());
  first_rank_ = static_cast<int>(store_->add(kNextRankKey, ranks)) - ranks;
  watch_ = std::make_unique<membership::HostWatch>(store_);
  thread_ = Thread("elastic-host", [this] { run(); });
}

JoinedHost::~JoinedHost() { leave(); }

std::string JoinedHost::place() const { return membership::job_place(node_.host, node_.port); }

void JoinedHost::talk_to_the_store() {
  watch_->beat();
  // A store that was started again from the journal lacks the run, and nothing else tells this host so.
  store_->compare_set(kRunKey, "", run_id_);
  if (const auto why = watch_->ended()) {
    const MutexLock lock(mutex_);
    reason_ = concat("the job at ", address_of(node_), " has ended: ", *why);
  }
}

// `told`: whether the user was told of a silence that has not ended.
void JoinedHost::tell_of_silence(const std::string& problem, Milliseconds silence, bool& told) const {
  if (problem.empty() && std::exchange(told, false)) {
    say_unless_it_waits(concat("the store of the job at ", address_of(node_), " answers again, and the job goes on"));
  }
  if (problem.empty() || told || silence < kTalk + kSilence) return;
  told = true;
  say_unless_it_waits(concat("the store of the job at ", address_of(node_),
                             " does not answer; this host's ranks wait up to ", seconds_text(node_.heartbeat_timeout),
                             " for it"));
}

void JoinedHost::run() {
  auto heard = Deadline::Clock::now();
  Deadline next_talk = Deadline::after(Milliseconds(0));
  bool told = false;
  int failed_talks = 0;
  MutexLock lock(mutex_);
  while (!stop_ && reason_.empty()) {
    const std::int64_t asked = asked_;
    const bool talks = asked > answered_ || next_talk.expired();
    const bool has_death = std::exchange(has_death_, false);
    const std::int64_t wanted = wanted_epoch_;
    if (gives_up_) watch_->gives_up();
    lock.unlock();
    std::string problem;
    std::optional<membership::Epoch> found;
    try {
      if (talks) {
        talk_to_the_store();
        found = look_up(wanted);
        heard = Deadline::Clock::now();
        next_talk = Deadline::after(std::min(kTalk, node_.heartbeat_timeout / 10));
      }
      watch_->look_for_the_dead(has_death);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    // After the last step nobody trains on, so nothing is cut off: the ranks have the time to save their results.
    const bool matters = !watch_->course().has_finished();
    const auto silence = std::chrono::duration_cast<Milliseconds>(Deadline::Clock::now() - heard);
    if (talks && matters) tell_of_silence(problem, silence, told);
    failed_talks = talks ? (problem.empty() ? 0 : failed_talks + 1) : failed_talks;
    lock.lock();
    course_ = watch_->course();
    if (found && wanted_epoch_ == wanted) wanted_epoch_ = 0;
    if (found) known_epoch_ = std::move(found);
    if (talks) {
      answered_ = asked;
      talked_well_ = problem.empty();
      changed_.notify_all();
    }
    // Twice: this process may not have run for a while itself, in the middle of the first.
    if (matters && failed_talks > 1 && silence >= node_.heartbeat_timeout) {
      silent_ = true;
      reason_ = concat("the coordinator of the job at ", address_of(node_), " has not answered for ",
                       seconds_text(node_.heartbeat_timeout), " (", problem,
                       "), so this host stops its ranks: a part of the job that is cut off does not train on");
    }
    if (has_death && !problem.empty()) has_death_ = true;
    if (!stop_ && reason_.empty() && asked_ == asked && (!has_death_ || has_death)) changed_.wait_for(lock, kLook);
  }
  changed_.notify_all();
  if (!reason_.empty()) alarm_.raise();
}

std::optional<membership::Epoch> JoinedHost::look_up(std::int64_t epoch) const {
  const std::string key = membership::epoch_key(epoch);
  if (epoch == 0 || !store_->check(std::span(&key, 1))) return std::nullopt;
  return membership::epoch_of(store_->get(key));
}

std::optional<membership::Epoch> JoinedHost::epoch(std::int64_t number) {
  const MutexLock lock(mutex_);
  if (known_epoch_ && known_epoch_->number == number) return known_epoch_;
  wanted_epoch_ = number;
  return std::nullopt;
}

membership::JobCourse JoinedHost::course() {
  const MutexLock lock(mutex_);
  return course_;
}

void JoinedHost::on_death() {
  const MutexLock lock(mutex_);
  has_death_ = true;
  changed_.notify_all();
}

void JoinedHost::gives_up() {
  const MutexLock lock(mutex_);
  gives_up_ = true;
}

bool JoinedHost::answers() {
  MutexLock lock(mutex_);
  const std::int64_t question = ++asked_;
  changed_.notify_all();
  while (answered_ < question && !stop_ && reason_.empty()) changed_.wait(lock);
  return reason_.empty() && talked_well_;
}

std::string JoinedHost::leave() noexcept {
  MutexLock lock(mutex_);
  stop_ = true;
  lock.unlock();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  lock.lock();
  if (watch_ == nullptr) return reason_;
  try {
    if (gives_up_) watch_->gives_up();
    const Deadline patience = Deadline::after(std::min(node_.heartbeat_timeout, kLeaveTime));
    while (!silent_ && reason_.empty()) {
      watch_->look_for_the_dead(/*has_news=*/true);
      if (watch_->has_read_all() || patience.expired()) break;
    }
    // After the end of the job too: the launcher with the store waits for this.
    if (!silent_) watch_->leave();
  } catch (const std::exception&) {
    // The coordinator notices the silence.
  }
  why_dropped_ = watch_->why_dropped().value_or("");
  watch_.reset();
  return reason_;
}

}  // namespace gradwire::launch
