// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/joined_host.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "gradwire/base/address.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/stored_values.h"
#include "launch/elastic_keys.h"
#include "launch/say.h"
#include "launch/store_silence.h"

namespace gradwire::launch {
namespace {

// Between two looks at the processes of this host: the others of the job wait until a death is reported.
constexpr Milliseconds kLook{10};
// How long a host that leaves reads on in a long log of events.
constexpr Milliseconds kLeaveTime{3000};

}  // namespace

JoinedHost::JoinedHost(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals)
    : node_(node),
      job_(enter_elastic_job(node, secret, ranks, signals)),
      watch_(std::make_unique<membership::HostWatch>(job_.store)),
      name_(watch_->host()),
      thread_("elastic-host", [this] { run(); }) {}

JoinedHost::~JoinedHost() { leave(); }

std::string JoinedHost::place() const { return membership::job_place(node_.host, node_.port); }

std::string JoinedHost::talk_to_the_store() {
  watch_->beat();
  // A store that was started again from the journal lacks the run, and nothing else tells this host so.
  job_.store->compare_set(kRunKey, "", job_.run_id);
  const auto why = watch_->ended();
  return why ? concat("the job at ", host_and_port(node_.host, node_.port), " has ended: ", *why) : "";
}

void JoinedHost::run() {
  StoreSilence silence(host_and_port(node_.host, node_.port), node_.heartbeat_timeout, Deadline::Clock::now());
  Deadline next_talk = Deadline::after(Milliseconds(0));
  while (const auto orders = mailbox_.take_orders()) {
    HostMailbox::Findings found{.has_talked = orders->asks || next_talk.expired()};
    if (orders->gives_up) watch_->gives_up();
    std::string problem;
    try {
      if (found.has_talked) {
        found.reason = talk_to_the_store();
        found.epoch = look_up(orders->wanted_epoch);
        silence.hears(Deadline::Clock::now());
        next_talk = Deadline::after(std::min(kBetweenTalks, node_.heartbeat_timeout / 10));
      }
      watch_->look_for_the_dead(orders->has_death);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    found.has_failed = !problem.empty();
    found.course = watch_->course();
    // After the last step nobody trains on, so nothing is cut off: the ranks have the time to save their results.
    if (found.has_talked && !found.course.has_finished()) {
      StoreSilence::Finding heard = silence.end_talk(problem, Deadline::Clock::now());
      if (!heard.to_tell.empty()) say_unless_it_waits(heard.to_tell);
      is_silent_ = !heard.why_lost.empty();
      if (is_silent_) found.reason = std::move(heard.why_lost);
    }
    mailbox_.report(*orders, std::move(found));
    mailbox_.wait(*orders, kLook);
  }
  if (!mailbox_.reason().empty()) alarm_.raise();
}

std::optional<membership::Epoch> JoinedHost::look_up(std::int64_t epoch) const {
  if (epoch == 0) return std::nullopt;
  const auto text = membership::value_of(*job_.store, membership::epoch_key(epoch));
  return text ? std::optional(membership::epoch_of(*text)) : std::nullopt;
}

std::string JoinedHost::leave() noexcept {
  mailbox_.stop();
  if (thread_.joinable()) thread_.join();
  std::string reason = mailbox_.reason();
  if (watch_ == nullptr) return reason;
  try {
    if (mailbox_.has_given_up()) watch_->gives_up();
    const Deadline patience = Deadline::after(std::min(node_.heartbeat_timeout, kLeaveTime));
    while (reason.empty()) {
      watch_->look_for_the_dead(/*has_news=*/true);
      if (watch_->has_read_all() || patience.expired()) break;
    }
    // After the end of the job too: the launcher with the store waits for this.
    if (!is_silent_) watch_->leave();
  } catch (const std::exception&) {
    // The coordinator notices the silence.
  }
  why_dropped_ = watch_->why_dropped().value_or("");
  watch_.reset();
  return reason;
}

}  // namespace gradwire::launch
