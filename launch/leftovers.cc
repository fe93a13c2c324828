// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/leftovers.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <utility>

#include "launch/keeper.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kExitTime{300};
// How long killed processes may take to go.
constexpr Milliseconds kGoTime{5000};

}  // namespace

void Leftovers::reap(const std::function<bool(pid_t)>& is_other) {
  // Looks before it reaps: the end of an other one belongs to who watches it.
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && !is_other(info.si_pid)) {
    ::waitpid(info.si_pid, nullptr, 0);
    info = {};
  }
}

void Leftovers::begin(bool patient, Time now) {
  patience_ = patient ? now + kExitTime : now;
  keepers_until_ = now + kKeeperTime;
  give_up_ = now + kExitTime + kGoTime;
}

bool Leftovers::clear(Time now) {
  // Killing one process hands its children to this one, which SIGCHLD announces; so this goes on until nobody is left.
  std::vector<pid_t> left = descendants_.children();
  if (left.empty()) return false;
  if (now >= give_up_) {
    unkillable_ = std::move(left);
    return false;
  }
  for (const pid_t pid : left) {
    if (now >= patience_ && (now >= keepers_until_ || !is_keeper(pid))) ::kill(pid, SIGKILL);
  }
  return true;
}

Milliseconds Leftovers::next(Time now) const {
  // For a child that came between the look and the kill.
  constexpr Milliseconds kLookAgain{20};
  return now >= patience_ ? kLookAgain : std::chrono::ceil<Milliseconds>(patience_ - now);
}

}  // namespace gradwire::launch
