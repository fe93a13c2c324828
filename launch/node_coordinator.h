// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One launcher's part in a job over several hosts. The launchers communicate through a store that node 0 serves: each
// launcher sends heartbeats, and learns when an attempt begins, fails or ends on the other hosts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/node_coordinator_options.h"
#include "launch/node_events.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// Runs a thread of its own. One thread may call the methods; except the destructor they do not block.
//
// Node 0 watches all other nodes, and the other nodes watch node 0. A node without a heartbeat for heartbeat_timeout
// has vanished: its host, its network or its launcher is gone. The other nodes learn from node 0 that a node has
// vanished.
class NodeCoordinator final {
 public:
  explicit NodeCoordinator(NodeCoordinatorOptions options);
  // Ends the thread. Without a Verdict this launcher leaves without telling the others. Waits up to heartbeat_timeout
  // when the store does not answer.
  ~NodeCoordinator();
  NodeCoordinator(const NodeCoordinator&) = delete;
  NodeCoordinator& operator=(const NodeCoordinator&) = delete;

  // next() returns the next event, if there is one. The descriptor is readable while there is an event.
  int event_fd() const noexcept;
  std::optional<NodeEvent> next();
  // A descriptor that is readable once the current attempt has failed on another host: stop this host's ranks then.
  int alarm_fd() const noexcept;

  // Reports, after a Plan, that a rank of this host has failed and that the attempt ends: the other hosts stop their
  // ranks, while those of this host still come to their end.
  void rank_failed();
  // Reports, after a Plan, that this host's ranks were told to end, by a signal to this launcher: another host that was
  // interrupted too, and whose ranks have ended well, does not stop them.
  void interrupted();
  // Reports, after a Plan, that no rank of this host runs any more. A Verdict or a Failure follows when all hosts have
  // reported this.
  void ranks_ended(const NodeEnd& end);
  // Ends the job on all hosts; an event follows. Call it only while no rank of this host runs.
  void leave(const NodeEnd& why);

  // In an attempt that is watched, on any node but 0: tells node 0 what report_line() says of this host's ranks. What
  // is told last counts.
  void tell_steps(std::string lines);
  // In such an attempt, on node 0: what each node has told last, by node; empty while it has told nothing. Asked about
  // once a second.
  std::vector<std::string> told_steps() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::launch
