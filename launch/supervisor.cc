// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/supervisor.h"

#include <sys/wait.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/poll_timeout.h"

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeftoverTime{300};
// How long a killed process may take to go: memory of many gigabytes is not given back at once.
constexpr milliseconds kKillTime{5000};
// timeout(1) and others signal the launcher and its process group, so that one interruption arrives twice.
constexpr milliseconds kRepeatTime{250};

}  // namespace

Supervisor::Supervisor(const Options& options, SignalQueue& signals, int front_fd, const JobView& view)
    : options_(options),
      signals_(signals),
      front_fd_(front_fd),
      view_(view),
      output_(options, view.names, view.filter),
      ranks_(options, signals, view.names.first_rank, output_, deaths_),
      stall_(view.flight, ranks_),
      job_end_(view.job_end) {
  if (view_.elastic) elastic_.emplace(*view_.elastic, signals_, ranks_, deaths_);
}

Supervisor::~Supervisor() {
  elastic_.reset();
  stall_.forget();
  if (ranks_gone_) return;
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
  started_ = Deadline::Clock::now();
  if (elastic_) elastic_->start();
  ranks_.start(ranks);
  while (!ranks_.running().empty()) {
    const bool watched = phase_ == Phase::running;
    const Deadline look = view_.live != nullptr ? view_.live->next_look() : Deadline::never();
    step(phase_end_.earlier(job_end_).earlier(watched ? stall_.next() : Deadline::never()).earlier(look));
    advance();
    if (watched) stall_.check();
    show();
    if (phase_ == Phase::killed && phase_end_.expired()) break;
  }
  serve_other_hosts();
  ranks_gone_ = true;
  elastic_.reset();
  // Before all processes that this one started are cleared away: one of them finds the lines.
  output_.say(finish_lookup());
  clear_leftovers();
  output_.drain();
  if (view_.live != nullptr) view_.live->finish(output_);
  if (outcome_.first_bad) {
    outcome_.last_lines = output_.last_error_lines(*outcome_.first_bad);
    outcome_.error_file = output_.error_file(*outcome_.first_bad);
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
  while (stall_.is_looking_up() && !leave_) step(Deadline::never());
  return stall_.take_text();
}

void Supervisor::serve_other_hosts() {
  constexpr milliseconds kLook{50};
  while (elastic_ && phase_ == Phase::running && outcome_.exit_code() == 0 && elastic_->has_hosts()) {
    if (job_end_.expired()) {
      outcome_.late_hosts = true;
      return;
    }
    step(Deadline::after(kLook));
    show();
  }
}

void Supervisor::finish_output(const std::string& text) {
  if (!text.empty()) output_.say(text);
  while (!output_.flushed() && !leave_) step(Deadline::never());
}

void Supervisor::step(Deadline until) {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                {deaths_.fd(), POLLIN, 0},
                                {front_fd_, POLLIN, 0},
                                {view_.alarm_fd, POLLIN, 0},
                                {stall_.lookup_fd(), POLLIN, 0}};
  const std::size_t own = polled.size();
  output_.append_interest(polled);
  if (::poll(polled.data(), polled.size(), poll_timeout(until.earlier(stall_.lookup_end()))) < 0) {
    if (errno == EINTR) return;
    throw_errno("cannot wait for the ranks and their output");
  }
  output_.handle(polled.data() + own);
  stall_.look_up();
  if (polled[2].revents != 0) on_front_death();
  for (const int rank : deaths_.ended()) {
    if (rank == ElasticWatch::kCoordinator) {
      on_coordinator_end();
    } else {
      on_rank_end(rank);
    }
  }
  if (polled[3].revents != 0) on_alarm();
  while (const auto signal = signals_.next()) on_signal(*signal);
  reap_orphans();
}

void Supervisor::advance() {
  if (phase_ == Phase::running && job_end_.expired() && !ranks_.running().empty()) {
    outcome_.late = ranks_.running();
    stall_.at_timeout();
    enter(Phase::asked);
  } else if (phase_end_.expired()) {
    if (phase_ == Phase::noticing) {
      enter(Phase::asked);
    } else if (phase_ == Phase::asked) {
      enter(Phase::killed);
    }
  }
}

void Supervisor::enter(Phase phase) {
  phase_ = phase;
  job_end_ = Deadline::never();  // the job is ending already
  if (phase == Phase::noticing || phase == Phase::asked) stall_.before_end();
  switch (phase) {
    case Phase::running:
      break;
    case Phase::noticing:
      phase_end_ = Deadline::after(view_.notice_time);
      break;
    case Phase::asked:
      outcome_.asked = ranks_.running();
      ranks_.signal(SIGTERM);
      phase_end_ = Deadline::after(options_.grace);
      break;
    case Phase::killed:
      outcome_.killed = ranks_.running();
      ranks_.signal(SIGKILL);
      phase_end_ = Deadline::after(kKillTime);
      break;
  }
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return;  // it only wakes the loop; step() looks for orphans each time
  const bool is_repeated = outcome_.interrupted_by != 0 && !repeat_guard_.expired();
  if (ranks_gone_) {
    if (!ends_job(signal) || is_repeated) return;
    leave_ = true;
    if (late_interruption_ == 0) late_interruption_ = signal;
    return;
  }
  if (ends_job(signal)) output_.say(stall_.take_text());  // no longer waits for the lines
  if (ends_job(signal) && phase_ == Phase::running && outcome_.interrupted_by == 0) stall_.before_interruption();
  // A rank leads an orphaned process group, in which the kernel discards SIGTSTP.
  ranks_.signal(signal == SIGTSTP ? SIGSTOP : signal);
  if (!ends_job(signal)) return;
  if (outcome_.interrupted_by == 0) {
    outcome_.interrupted_by = signal;
    outcome_.interrupted_first = !outcome_.first_bad && outcome_.late.empty();
    repeat_guard_ = Deadline::after(kRepeatTime);
  } else if (signal == SIGINT && !is_repeated && phase_ != Phase::killed) {
    enter(Phase::killed);
  }
}

void Supervisor::on_front_death() {
  front_fd_ = -1;
  leave_ = true;  // nobody waits for the output any more
  if (view_.gentle && phase_ != Phase::killed) {
    if (phase_ != Phase::asked) enter(Phase::asked);
  } else if (phase_ != Phase::killed) {
    enter(Phase::killed);
  }
}

void Supervisor::on_alarm() {
  view_.alarm_fd = -1;
  if (ranks_gone_) return;
  outcome_.stopped_first = !outcome_.first_bad && outcome_.late.empty() && outcome_.interrupted_by == 0;
  if (phase_ == Phase::running) enter(Phase::noticing);
}

void Supervisor::on_coordinator_end() {
  try {
    output_.say(elastic_->on_coordinator_end());
  } catch (const LaunchError& error) {
    output_.say(concat("gradwire-run: ", error.what(), "\n"));
    outcome_.launch_failed = true;
    if (phase_ == Phase::running) enter(Phase::asked);
  }
}

void Supervisor::on_rank_end(int rank) {
  const ProcessEnd end = ranks_.reap_rank(rank);
  outcome_.ends[rank] = end;
  if (end.good() || outcome_.first_bad || replace(rank, end)) return;
  outcome_.first_bad = rank;
  outcome_.first_bad_after = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - started_);
  if (phase_ == Phase::running) enter(Phase::noticing);
}

bool Supervisor::replace(int rank, const ProcessEnd& end) {
  if (!elastic_ || phase_ != Phase::running || outcome_.interrupted_by != 0) return false;
  const ElasticWatch::Answer answer = elastic_->on_rank_death(view_.names.first_rank + rank, end);
  output_.say(answer.text);
  if (!answer.replace) return false;
  try {
    ranks_.start_again(rank);
  } catch (const LaunchError& error) {
    // The program's file may be written at this moment, or there may be too many processes.
    const bool goes_on = !ranks_.running().empty();
    output_.say(concat("gradwire-run: ", error.what(), goes_on ? "; the job goes on without this rank\n" : "\n"));
    return goes_on;
  }
  outcome_.ends[rank].reset();
  return true;
}

void Supervisor::reap_orphans() {
  // Looks before it reaps: a rank's end belongs to on_rank_end(), which learns of it in the order of deaths.
  siginfo_t info{};
  const auto is_ours = [&](pid_t pid) { return ranks_.has(pid) || (elastic_ && elastic_->is_coordinator(pid)); };
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && !is_ours(info.si_pid)) {
    ::waitpid(info.si_pid, nullptr, 0);
    info = {};
  }
}

void Supervisor::clear_leftovers() {
  const Deadline patience = Deadline::after(front_fd_ < 0 && !view_.gentle ? milliseconds::zero() : kLeftoverTime);
  const Deadline give_up = Deadline::after(kLeftoverTime + kKillTime);
  // Killing one process hands its children to this one, which SIGCHLD announces; so this goes on until nobody is left.
  // The short waits are for a child that came between the look and the kill.
  constexpr milliseconds kLookAgain{20};
  for (auto left = descendants_.children(); !left.empty(); left = descendants_.children()) {
    if (give_up.expired()) {
      outcome_.unkillable = left;
      return;
    }
    if (patience.expired()) {
      for (const pid_t pid : left) ::kill(pid, SIGKILL);
    }
    step(patience.expired() ? Deadline::after(kLookAgain) : patience);
  }
}

}  // namespace gradwire::launch
