// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_set.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "launch/cpu_share.h"
#include "launch/launch_error.h"
#include "launch/signal_lines.h"

namespace gradwire::launch {
namespace {

// How long kill() waits.
constexpr Milliseconds kKillTime{2000};

}  // namespace

RankSet::RankSet(const Options& options, const SignalQueue& signals, int first_rank, Output& output, DeathWatch& deaths)
    : options_(options),
      signals_(signals),
      first_rank_(first_rank),
      output_(output),
      deaths_(deaths),
      null_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  if (!null_) throw_errno("cannot open /dev/null");
}

RankSet::~RankSet() { kill(); }

void RankSet::kill() noexcept {
  signal(SIGKILL);
  const Deadline patience = Deadline::after(kKillTime);
  for (const int rank : running()) {
    pollfd ended{ranks_[static_cast<std::size_t>(rank)].pidfd.get(), POLLIN, 0};
    while (::poll(&ended, 1, static_cast<int>(patience.remaining().count())) < 0 && errno == EINTR) {
    }
    if ((ended.revents & POLLIN) != 0) reap_rank(rank);
  }
}

void RankSet::start(const std::vector<RankCommand>& commands) {
  commands_ = &commands;
  const int count = static_cast<int>(commands.size());
  for (int rank = 0; rank < count; ++rank) ranks_.push_back(start_one(rank));
}

void RankSet::start_again(int rank) { ranks_[static_cast<std::size_t>(rank)] = start_one(rank); }

RankProcess RankSet::start_one(int rank) {
  const RankCommand& command = (*commands_)[static_cast<std::size_t>(rank)];
  const int count = static_cast<int>(commands_->size());
  CpuSet cpus = options_.pin ? CpuSet(share_of_rank(allowed_cpus(), rank, count)) : CpuSet();
  const RankOutput output = output_.open(rank);
  RankStart start{.name = concat("rank ", number_of(rank)),
                  .command = command.command,
                  .environment = command.environment,
                  .cpus = std::move(cpus),
                  .stdin_fd = command.stdin_fd >= 0 ? command.stdin_fd : null_.get(),
                  .stdout_fd = output.out.get(),
                  .stderr_fd = output.err.get(),
                  .signal_mask = signals_.original_mask()};
  return start_rank(start, [&](int pidfd) { deaths_.add(rank, start.name, pidfd); });
}

ProcessEnd RankSet::reap_rank(int rank) noexcept {
  RankProcess& process = ranks_[static_cast<std::size_t>(rank)];
  deaths_.remove(process.pidfd.get());
  process.pidfd.reset();
  return reap(std::exchange(process.pid, -1));
}

void RankSet::signal(int signal) noexcept {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) this->signal(static_cast<int>(rank), signal);
}

void RankSet::signal(int rank, int signal) noexcept {
  // Not yet reaped, so the number still means this process and its group.
  const pid_t pid = ranks_[static_cast<std::size_t>(rank)].pid;
  if (pid > 0) ::kill(-pid, signal);
}

void RankSet::pass_on(int signal) noexcept {
  for (const int rank : running()) {
    const int fd = (*commands_)[static_cast<std::size_t>(rank)].signal_fd;
    if (fd >= 0 && write_signal_line(fd, signal)) continue;
    // A rank leads an orphaned process group, in which the kernel discards SIGTSTP.
    this->signal(rank, signal == SIGTSTP ? SIGSTOP : signal);
  }
}

std::vector<int> RankSet::running() const {
  std::vector<int> running;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].pid > 0) running.push_back(static_cast<int>(rank));
  }
  return running;
}

std::vector<RunningRank> RankSet::processes() const {
  std::vector<RunningRank> processes;
  for (const auto& rank : ranks_) processes.push_back({rank.pid, rank.started});
  processes.resize(static_cast<std::size_t>(options_.ranks));
  return processes;
}

bool RankSet::has(pid_t pid) const noexcept {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank.pid == pid; });
}

}  // namespace gradwire::launch
