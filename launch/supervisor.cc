// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/supervisor.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <exception>

#include "gradwire/base/strings.h"
#include "launch/cpu_share.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

using std::chrono::milliseconds;

// The coordinator's number among the watched processes.
constexpr int kCoordinator = -1;
constexpr milliseconds kLeftoverTime{300};
// How long a killed process may take to go: memory of many gigabytes is not given back at once.
constexpr milliseconds kKillTime{5000};
// timeout(1) and others signal the launcher and its process group, so that one interruption arrives twice.
constexpr milliseconds kRepeatTime{250};

int poll_timeout(Deadline until) { return static_cast<int>(std::min<long long>(until.remaining().count(), INT_MAX)); }

}  // namespace

Supervisor::Supervisor(const Options& options, SignalQueue& signals, int front_fd, const JobView& view)
    : options_(options),
      signals_(signals),
      front_fd_(front_fd),
      view_(view),
      output_(options, view.names),
      null_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      job_end_(view.job_end) {
  if (!null_) throw_errno("cannot open /dev/null");
}

Supervisor::~Supervisor() {
  stop_coordinator();
  if (ranks_gone_) return;
  signal_ranks(SIGKILL);
  for (auto& rank : ranks_) {
    if (rank.pid > 0) reap(rank.pid);
    rank.pid = -1;
  }
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
  commands_ = &ranks;
  if (view_.elastic) start_coordinator();
  start_ranks(ranks);
  while (!running_ranks().empty()) {
    const bool watched = phase_ == Phase::running && view_.flight != nullptr;
    const Deadline look = view_.live != nullptr ? view_.live->next_look() : Deadline::never();
    step(phase_end_.earlier(job_end_).earlier(watched ? view_.flight->next_check() : Deadline::never()).earlier(look));
    advance();
    if (view_.live != nullptr) view_.live->look(output_);
    if (watched && view_.flight->next_check().expired()) check_stall();
    if (phase_ == Phase::killed && phase_end_.expired()) break;
  }
  ranks_gone_ = true;
  stop_coordinator();
  clear_leftovers();
  output_.drain();
  if (view_.live != nullptr) view_.live->finish(output_);
  if (outcome_.first_bad) {
    outcome_.last_lines = output_.last_error_lines(*outcome_.first_bad);
    outcome_.error_file = output_.error_file(*outcome_.first_bad);
  }
  diagnose();
  return outcome_;
}

void Supervisor::finish_output(const std::string& text) {
  if (!text.empty()) output_.say(text);
  while (!output_.flushed() && !leave_) step(Deadline::never());
}

void Supervisor::start_ranks(const std::vector<RankCommand>& ranks) {
  const int count = static_cast<int>(ranks.size());
  for (int rank = 0; rank < count; ++rank) ranks_.push_back(start_one(ranks[rank], rank));
}

RankProcess Supervisor::start_one(const RankCommand& command, int rank) {
  const int count = static_cast<int>(commands_->size());
  CpuSet cpus = options_.pin ? CpuSet(share_of_rank(allowed_cpus(), rank, count)) : CpuSet();
  const RankOutput output = output_.open(rank);
  RankStart start{.rank = view_.names.first_rank + rank,
                  .command = command.command,
                  .environment = command.environment,
                  .cpus = std::move(cpus),
                  .stdin_fd = command.stdin_fd >= 0 ? command.stdin_fd : null_.get(),
                  .stdout_fd = output.out.get(),
                  .stderr_fd = output.err.get(),
                  .signal_mask = signals_.original_mask()};
  RankProcess process = start_rank(start);
  deaths_.add(rank, process.pidfd.get());
  return process;
}

void Supervisor::start_coordinator() {
  const RankCommand& command = view_.elastic->coordinator;
  RankStart start{.rank = kCoordinator,
                  .command = command.command,
                  .environment = command.environment,
                  .cpus = CpuSet(),
                  .stdin_fd = null_.get(),
                  .stdout_fd = STDERR_FILENO,
                  .stderr_fd = STDERR_FILENO,
                  .signal_mask = signals_.original_mask()};
  coordinator_ = start_rank(start);
  deaths_.add(kCoordinator, coordinator_.pidfd.get());
}

void Supervisor::stop_coordinator() noexcept {
  if (coordinator_.pid <= 0) return;
  deaths_.remove(coordinator_.pidfd.get());
  ::kill(coordinator_.pid, SIGKILL);  // its journal is on the disk
  reap(coordinator_.pid);
  coordinator_ = {};
}

void Supervisor::step(Deadline until) {
  std::vector<pollfd> polled = {
      {signals_.fd(), POLLIN, 0}, {deaths_.fd(), POLLIN, 0}, {front_fd_, POLLIN, 0}, {view_.alarm_fd, POLLIN, 0}};
  output_.append_interest(polled);
  if (::poll(polled.data(), polled.size(), poll_timeout(until)) < 0) return;
  output_.handle(polled.data() + 4);
  if (polled[2].revents != 0) on_front_death();
  for (const int rank : deaths_.ended()) rank == kCoordinator ? on_coordinator_end() : on_rank_end(rank);
  if (polled[3].revents != 0) on_alarm();
  while (const auto signal = signals_.next()) on_signal(*signal);
  reap_orphans();
}

void Supervisor::advance() {
  if (phase_ == Phase::running && job_end_.expired() && !running_ranks().empty()) {
    outcome_.late = running_ranks();
    if (view_.flight != nullptr) outcome_.diagnosis = view_.flight->at_timeout(pids());
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
  if (view_.flight != nullptr && (phase == Phase::noticing || phase == Phase::asked)) view_.flight->look(pids());
  switch (phase) {
    case Phase::running:
      break;
    case Phase::noticing:
      phase_end_ = Deadline::after(view_.notice_time);
      break;
    case Phase::asked:
      outcome_.asked = running_ranks();
      signal_ranks(SIGTERM);
      phase_end_ = Deadline::after(options_.grace);
      break;
    case Phase::killed:
      outcome_.killed = running_ranks();
      signal_ranks(SIGKILL);
      phase_end_ = Deadline::after(kKillTime);
      break;
  }
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) return;  // it only wakes the loop; step() looks for orphans each time
  if (ranks_gone_) {
    leave_ = leave_ || ends_job(signal);
    return;
  }
  // A rank leads an orphaned process group, in which the kernel discards SIGTSTP.
  signal_ranks(signal == SIGTSTP ? SIGSTOP : signal);
  if (!ends_job(signal)) return;
  if (outcome_.interrupted_by == 0) {
    outcome_.interrupted_by = signal;
    outcome_.interrupted_first = !outcome_.first_bad && outcome_.late.empty();
    repeat_guard_ = Deadline::after(kRepeatTime);
  } else if (signal == SIGINT && repeat_guard_.expired() && phase_ != Phase::killed) {
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

void Supervisor::on_rank_end(int rank) {
  RankProcess& process = ranks_[rank];
  deaths_.remove(process.pidfd.get());
  process.pidfd.reset();
  const ProcessEnd end = reap(process.pid);
  process.pid = -1;
  outcome_.ends[rank] = end;
  if (end.good() || outcome_.first_bad || replace(rank, end)) return;
  outcome_.first_bad = rank;
  outcome_.first_bad_after = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - started_);
  if (phase_ == Phase::running) enter(Phase::noticing);
}

bool Supervisor::replace(int rank, const ProcessEnd& end) {
  if (!view_.elastic || phase_ != Phase::running || outcome_.interrupted_by != 0) return false;
  const int number = view_.names.first_rank + rank;
  const int deaths = rank_deaths_.add(Deadline::Clock::now());
  const int limit = view_.elastic->deaths_per_minute;
  if (deaths > limit) {
    output_.say(concat("gradwire-run: rank ", number, " died of ", describe(end), "; that is death ", deaths,
                       " within a minute, more than --deaths-per-minute ", limit, ", so the job ends\n"));
    return false;
  }
  output_.say(concat("gradwire-run: rank ", number, " died of ", describe(end),
                     ", and a new process takes its place (death ", deaths, " within a minute)\n"));
  ranks_[rank] = start_one((*commands_)[static_cast<std::size_t>(rank)], rank);
  outcome_.ends[rank].reset();
  return true;
}

void Supervisor::on_coordinator_end() {
  deaths_.remove(coordinator_.pidfd.get());
  const ProcessEnd end = reap(coordinator_.pid);
  coordinator_ = {};
  const int limit = view_.elastic->deaths_per_minute;
  if (coordinator_deaths_.add(Deadline::Clock::now()) > limit) {
    throw LaunchError(kLaunchFailedExit, concat("the coordinator of the elastic job ended more than ", limit,
                                                " times within a minute, last of ", describe(end)));
  }
  output_.say(concat("gradwire-run: the coordinator died of ", describe(end),
                     ", and goes on from its journal as a new process\n"));
  start_coordinator();
}

void Supervisor::reap_orphans() {
  // Looks before it reaps: a rank's end belongs to on_rank_end(), which learns of it in the order of deaths.
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && !is_rank(info.si_pid)) {
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

void Supervisor::signal_ranks(int signal) noexcept {
  // Not yet reaped, so the number still means this process and its group.
  for (const auto& rank : ranks_) {
    if (rank.pid > 0) ::kill(-rank.pid, signal);
  }
}

std::vector<int> Supervisor::running_ranks() const {
  std::vector<int> running;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].pid > 0) running.push_back(static_cast<int>(rank));
  }
  return running;
}

std::vector<int> Supervisor::pids() const {
  std::vector<int> pids;
  for (const auto& rank : ranks_) pids.push_back(rank.pid);
  return pids;
}

void Supervisor::check_stall() {
  if (running_ranks().empty()) return;
  const std::string text = view_.flight->check_stall(pids());
  if (!text.empty()) output_.say(text);
}

// Of a job that failed by itself: an interruption is explained by itself.
void Supervisor::diagnose() {
  const bool failed = outcome_.first_bad && outcome_.interrupted_by == 0 && outcome_.late.empty();
  if (!failed || view_.flight == nullptr) return;
  outcome_.diagnosis = view_.flight->at_end(outcome_, [&](int rank) { return output_.last_error_lines(rank); });
}

bool Supervisor::is_rank(pid_t pid) const noexcept {
  return pid == coordinator_.pid ||
         std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank.pid == pid; });
}

}  // namespace gradwire::launch
