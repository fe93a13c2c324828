// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

EndPhases::Time now() { return EndPhases::Time::clock::now(); }

}  // namespace

Supervisor::Supervisor(const Options& options, SignalQueue& signals, int front_fd, const JobView& view)
    : view_(view),
      output_(options, view.names, view.filter),
      ranks_(options, signals, view.names.first_rank, output_, deaths_),
      stall_(view.flight, ranks_),
      events_(signals, deaths_, output_, stall_, front_fd, view.alarm_fd),
      stall_bound_(options.stall.value_or(milliseconds::zero())),
      phases_({.notice = view.notice_time, .grace = options.grace, .job_end = view.job_end}) {
  if (view_.elastic) elastic_.emplace(*view_.elastic, signals, ranks_, deaths_);
}

Supervisor::~Supervisor() {
  elastic_.reset();
  stall_.forget();
  if (phases_.is(Phase::gone)) return;
  ranks_.kill();
  try {
    clear_leftovers();
  } catch (const std::exception&) {
    // No memory to list them with, on the way out of an error that the user hears of anyway.
  }
}

JobOutcome Supervisor::run(const std::vector<RankCommand>& ranks) {
  outcome_ = {};
  outcome_.first_rank = view_.names.first_rank;
  outcome_.ends.resize(ranks.size());
  started_ = now();
  if (elastic_) elastic_->start();
  ranks_.start(ranks);
  while (!ranks_.running().empty() && !phases_.is(Phase::gone)) {
    const bool watched = phases_.is(Phase::running);
    const Deadline look = view_.live != nullptr ? view_.live->next_look() : Deadline::never();
    const Deadline next = after_look_ ? after_look_->due : phases_.next(now());
    step(next.earlier(watched ? stall_.next() : Deadline::never()).earlier(look));
    on_time();
    if (watched) check_stall();
    show();
  }
  serve_other_hosts();
  phases_.enter(Phase::gone, now());
  if (elastic_) elastic_->stop();
  // Before all processes that this one started are cleared away: one of them finds the lines.
  output_.say(finish_lookup());
  clear_leftovers();
  output_.drain();
  if (view_.live != nullptr) view_.live->finish(output_);
  if (outcome_.first_bad) {
    outcome_.last_lines = output_.last_error_lines(*outcome_.first_bad);
    outcome_.error_file = output_.error_file(*outcome_.first_bad);
    if (ended_by_row_) outcome_.earlier = elastic_->first_of_row();
    if (view_.flight != nullptr) outcome_.first_bad_calls = view_.flight->calls_of(*outcome_.first_bad);
  }
  stall_.diagnose_end(outcome_, [&](int rank) { return output_.last_error_lines(rank); });
  outcome_.diagnosis = finish_lookup();
  return outcome_;
}

void Supervisor::show() {
  if (view_.live != nullptr) view_.live->look(output_);
  if (!stall_.is_looking_up()) output_.say(stall_.take_text());
}

std::string Supervisor::finish_lookup() {
  while (stall_.is_looking_up() && has_reader()) step(Deadline::never());
  return stall_.take_text();
}

void Supervisor::check_stall() {
  const std::optional<HangAnswer> answer = stall_.check();
  const bool hangs_since_asked = stall_.hangs() && std::min(*stall_.hangs(), now() - asked_to_leave_) >= stall_bound_;
  if (hangs_since_asked && elastic_ && phases_.is(Phase::running) && outcome_.interrupted_by != 0) {
    output_.say("gradwire-run: the ranks were to leave after the step, but the job stands still; they are ended\n");
    return enter(Phase::asked);
  }
  // A job that was interrupted replaces nobody.
  if (!answer || !phases_.is(Phase::running) || outcome_.interrupted_by != 0) return;
  output_.say(answer->text);
  if (answer->kill) ranks_.signal(*answer->kill, SIGKILL);
}

void Supervisor::serve_other_hosts() {
  constexpr milliseconds kLook{50};
  while (elastic_ && phases_.is(Phase::running) && (outcome_.exit_code() == 0 || failed_after_job_) &&
         elastic_->has_hosts() && !elastic_->has_lost_state()) {
    if (phases_.is_late(now())) {
      outcome_.late_hosts = true;
      return;
    }
    step(Deadline::after(kLook));
    show();
  }
}

void Supervisor::finish_output(const std::string& text) {
  if (!text.empty()) output_.say(text);
  while (!output_.flushed() && has_reader()) step(Deadline::never());
}

void Supervisor::clear_leftovers() {
  leftovers_.begin(events_.has_front() || view_.gentle, now());
  while (leftovers_.clear(now())) step(Deadline::after(leftovers_.next(now())));
  outcome_.unkillable = leftovers_.unkillable();
}

void Supervisor::step(Deadline until) {
  const JobNews news = events_.wait(elastic_ ? until.earlier(elastic_->next_look()) : until);
  if (elastic_) elastic_->look(now());
  if (news.front_died) on_front_death();
  for (const int process : news.ended) {
    if (process == ElasticWatch::kCoordinator) {
      on_coordinator_end();
    } else {
      on_rank_end(process);
    }
  }
  if (news.alarm && !phases_.is(Phase::gone)) {
    outcome_.stopped_first = !outcome_.has_cause();
    enter(Phase::noticing);
  }
  for (const int signal : news.signals) on_signal(signal);
  Leftovers::reap([&](pid_t pid) { return ranks_.has(pid) || (elastic_ && elastic_->is_coordinator(pid)); });
}

void Supervisor::on_time() {
  if (after_look_) {
    if (!after_look_->due.expired()) return;
    after_look_->signal != 0 ? stall_.before_interruption() : stall_.at_timeout();
    end_wait();
  } else if (phases_.is_late(now()) && !ranks_.running().empty()) {
    outcome_.late = ranks_.running();
    if (stall_.at_timeout()) {
      after_look_ = {Deadline::after(StallChecks::kBetweenLooks)};
    } else {
      enter(Phase::asked);
    }
  } else if (const auto phase = phases_.due(now())) {
    enter(*phase);
  }
}

void Supervisor::end_wait() {
  const auto ended = std::exchange(after_look_, std::nullopt);
  if (!ended) return;
  if (ended->signal == 0) return enter(Phase::asked);
  ranks_.pass_on(ended->signal);
  interruptions_.has_handled(now());
}

void Supervisor::enter(Phase phase) {
  end_wait();
  if (phase <= phases_.phase()) return;
  phases_.enter(phase, now());
  if (phase == Phase::noticing || phase == Phase::asked) stall_.before_end();
  if (phase == Phase::asked) {
    outcome_.asked = ranks_.running();
    ranks_.signal(SIGTERM);
  } else if (phase == Phase::killed) {
    outcome_.killed = ranks_.running();
    ranks_.signal(SIGKILL);
  }
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return;  // it only wakes the loop; step() looks for orphans each time
  if (!ends_job(signal)) {
    if (phases_.is(Phase::gone)) return;
    if (signal == SIGTSTP) stall_.ranks_were_stopped();
    if (signal == SIGCONT) stall_.ranks_were_continued();
    ranks_.pass_on(signal);
    return;
  }
  const Interruptions::Kind kind = interruptions_.take(signal, now());
  if (phases_.is(Phase::gone)) {
    if (kind != Interruptions::Kind::repeated && late_interruption_ == 0) late_interruption_ = signal;
    return;
  }
  if (after_look_ && kind == Interruptions::Kind::repeated) return;
  end_wait();
  output_.say(stall_.take_text());  // no longer waits for the lines
  if (kind == Interruptions::Kind::another && signal != SIGINT && elastic_ && phases_.is(Phase::running)) {
    // Elastic takes the first signal for a wish to leave after the step under way, which may never end.
    stall_.before_interruption();
    return enter(Phase::asked);
  }
  if (kind == Interruptions::Kind::first && phases_.is(Phase::running) && stall_.before_interruption() &&
      !ranks_.running().empty()) {
    after_look_ = {Deadline::after(StallChecks::kBetweenLooks), signal};
  } else {
    ranks_.pass_on(signal);
  }
  if (kind == Interruptions::Kind::first) {
    outcome_.interrupted_first = !outcome_.has_cause();
    outcome_.interrupted_by = signal;
    asked_to_leave_ = now();
    if (view_.on_interruption) view_.on_interruption();
    interruptions_.has_handled(now());
  } else if (kind == Interruptions::Kind::another && signal == SIGINT) {
    // The hosts kill their ranks themselves, and their reports come before they end.
    if (!view_.gentle || hosts_kill_) return enter(Phase::killed);
    hosts_kill_ = true;
    interruptions_.has_handled(now());
  }
}

// Nothing that happens to the ranks from here on is the cause of the end.
void Supervisor::on_front_death() {
  if (outcome_.interrupted_by == 0) {
    stall_.before_interruption();
    outcome_.interrupted_first = !outcome_.has_cause();
    outcome_.interrupted_by = SIGKILL;
    outcome_.launcher_was_killed = true;
  }
  enter(view_.gentle ? Phase::asked : Phase::killed);
}

void Supervisor::on_coordinator_end() {
  const ElasticWatch::Answer answer = elastic_->on_coordinator_end();
  output_.say(answer.text);
  if (answer.goes_on) return;
  outcome_.launch_failed = true;
  if (phases_.is(Phase::running)) enter(Phase::asked);
}

void Supervisor::on_rank_end(int rank) {
  const pid_t process = ranks_.processes()[static_cast<std::size_t>(rank)].pid;
  const ProcessEnd end = ranks_.reap_rank(rank);
  outcome_.ends[rank] = end;
  if (end.good() || outcome_.first_bad) return;
  if (view_.goes_on_without && phases_.is(Phase::running) && outcome_.interrupted_by == 0) {
    const std::string text = view_.goes_on_without(rank, end);
    output_.say(text);
    if (!text.empty()) return;
  }
  if (elastic_ && phases_.is(Phase::running) && outcome_.interrupted_by == 0) {
    const EarlierDeath death{.rank = rank,
                             .end = end,
                             .after = std::chrono::duration_cast<milliseconds>(now() - started_),
                             .last_lines = {},
                             .error_file = output_.error_file(rank)};
    const ElasticWatch::Answer answer = elastic_->on_rank_death(process, death, output_.error_lines_of_process(rank));
    output_.say(answer.text);
    if (answer.is_replaced) outcome_.ends[rank].reset();
    if (answer.fails_the_job) {
      failed_after_job_ = true;
      return set_first_bad(rank);
    }
    if (answer.goes_on) return;
    ended_by_row_ = true;
  }
  set_first_bad(rank);
  enter(Phase::noticing);
  if (view_.on_failure) view_.on_failure();
}

void Supervisor::set_first_bad(int rank) {
  outcome_.first_bad = rank;
  outcome_.first_bad_after = std::chrono::duration_cast<milliseconds>(now() - started_);
  outcome_.first_bad_at = std::chrono::system_clock::now();
}

}  // namespace gradwire::launch
