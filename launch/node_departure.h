// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Why and when the launcher of one host leaves a job over several hosts by itself.
#pragma once

#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "launch/interruptions.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// A launcher that leaves tells the other nodes, and waits for the heartbeat timeout for what they say to that. Only
// decides: who uses the object tells the others. Times are given by the caller and never go back. For one thread.
class NodeDeparture final {
 public:
  using Time = Deadline::Clock::time_point;

  // Of node `node`, which waits for the others to begin an attempt. `job_end`: --timeout.
  NodeDeparture(int node, Milliseconds heartbeat_timeout, Deadline job_end)
      : node_(node), heartbeat_timeout_(heartbeat_timeout), job_end_(job_end) {}

  // An attempt begins. Where this node leaves, the attempt began before the others had heard that: they have the time
  // again to say what they say to it.
  void attempt_begins(Time now);
  // The attempt has ended, and this node waits for the others to begin another one.
  void meets_again() noexcept { meets_ = true; }

  // A signal that ends the job has come while no rank of this host runs. Returns what to tell the other nodes; nothing
  // where this node leaves already. Another signal than the first ends the wait for what they say.
  std::optional<NodeEnd> on_signal(int signal, Time now);
  // is_late() is true: returns what to tell the other nodes.
  NodeEnd on_timeout(Time now);
  // Nobody waits for this launcher, and nobody is told: to the others it is as if this host were gone. They notice, and
  // may start again.
  void on_front_death(Time now) noexcept;

  // The exit code, once this node leaves; 0 before.
  int exit_code() const noexcept { return exit_code_; }
  bool is_leaving() const noexcept { return exit_code_ != 0; }
  // Whether --timeout has passed while this node waited for the others. The ranks of an attempt have a watch of their
  // own.
  bool is_late(Time now) const noexcept { return may_be_late() && now >= job_end_.point(); }
  // Whether this node leaves, and has waited long enough for what the others say.
  bool is_over(Time now) const noexcept { return now >= patience_.point(); }
  // When is_late() or is_over() changes.
  Deadline next() const noexcept { return may_be_late() ? patience_.earlier(job_end_) : patience_; }

 private:
  bool may_be_late() const noexcept { return meets_ && !is_leaving(); }
  NodeEnd leave(int exit_code, std::string what, Time now);

  const int node_;
  const Milliseconds heartbeat_timeout_;
  const Deadline job_end_;
  bool meets_ = true;  // this node waits for the others, to begin an attempt
  int exit_code_ = 0;
  Deadline patience_ = Deadline::never();
  Interruptions interruptions_;
};

}  // namespace gradwire::launch
