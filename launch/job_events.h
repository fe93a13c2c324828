// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Waits for what happens to a job on this host.
#pragma once

#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/death_watch.h"
#include "launch/output.h"
#include "launch/signals.h"
#include "launch/stall_checks.h"

namespace gradwire::launch {

// What has happened since the last look.
struct JobNews {
  bool front_died = false;        // the front process was killed, so that no process waits for the outcome; told once
  bool alarm = false;             // the job has failed on another host; told once
  std::vector<int> ended;         // the processes of DeathWatch that have ended, the first death first
  std::vector<int> signals = {};  // that have arrived, in their order
};

// One poll over all descriptors of a job. For one thread.
class JobEvents final {
 public:
  // The references outlive the object. `front_fd` becomes readable when the front process has died, and `alarm_fd` (-1:
  // none) once the job has failed on another host.
  JobEvents(SignalQueue& signals, const DeathWatch& deaths, Output& output, StallChecks& stall, int front_fd,
            int alarm_fd)
      : signals_(signals), deaths_(deaths), output_(output), stall_(stall), front_fd_(front_fd), alarm_fd_(alarm_fd) {}

  // Waits for an event or until `until`. Passes on the ranks' output, and goes on with a lookup of source lines.
  // Throws LaunchError.
  JobNews wait(Deadline until);
  bool has_front() const noexcept { return front_fd_ >= 0; }

 private:
  SignalQueue& signals_;
  const DeathWatch& deaths_;
  Output& output_;
  StallChecks& stall_;
  int front_fd_;  // -1 once it was told
  int alarm_fd_;  // the same
};

}  // namespace gradwire::launch
