// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages between the thread that coordinates a node with the others, and the rest of its launcher.
#pragma once

#include <deque>
#include <optional>

#include "gradwire/base/mutex.h"
#include "launch/interruption.h"
#include "launch/node_events.h"
#include "launch/node_records.h"
#include "launch/wakeup.h"

namespace gradwire::launch {

// Thrown in the coordinating thread once the launcher has called stop().
struct Stopped {};

// Thread-safe. The launcher sends its orders and takes events; the coordinating thread, of which there is one, takes
// the orders and sends events. leave() and stop() call the thread away from where it waits; the thread looks for the
// other orders by itself, and ranks_ended() ends wait_for_own_end().
class NodeMailbox final : public Interruption {
 public:
  // For the launcher. As the methods of NodeCoordinator with these names.
  int event_fd() const noexcept { return events_ready_.fd(); }
  std::optional<NodeEvent> next();
  int alarm_fd() const noexcept { return alarm_.fd(); }
  void rank_failed();
  void interrupted();
  void ranks_ended(const NodeEnd& end);
  void leave(const NodeEnd& why);
  // The thread is to end.
  void stop();

  // For the coordinating thread. What the launcher has ordered.
  struct Orders {
    bool rank_failed = false;        // a rank of this host has failed, which ends the attempt
    bool interrupted = false;        // this launcher was told to end the job, in an attempt
    std::optional<NodeEnd> own_end;  // no rank of this host runs any more
    std::optional<NodeEnd> leaving;  // the job is to end
  };
  // Throws Stopped.
  Orders orders();
  // The same, once the ranks of this host have ended.
  Orders wait_for_own_end();
  void publish(NodeEvent event);
  void raise_alarm() noexcept { alarm_.raise(); }
  // A new attempt begins: the alarm is off, and no failure or end of this host's ranks is known.
  void begin_attempt();
  // Whether this node takes part in an attempt: who leaves then does so by the verdict on the attempt, and nobody is
  // called away.
  void set_in_attempt(bool in_attempt);
  // Interruption: both throw Stopped, or LaunchError with the end that leave() was given.
  void check() override;
  void pause(Milliseconds time) override;

 private:
  bool is_called_away() const GRADWIRE_REQUIRES(mutex_) { return stop_ || (orders_.leaving && !in_attempt_); }

  Wakeup events_ready_;
  Wakeup alarm_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool in_attempt_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Orders orders_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<NodeEvent> events_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::launch
