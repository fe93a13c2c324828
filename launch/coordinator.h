// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One launcher's part in a job over several hosts: meets the launchers of the other hosts in a store that node 0
// serves, keeps telling them that this host is there, and learns from them how the job goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "launch/node_records.h"

namespace gradwire::launch {

struct CoordinatorOptions {
  int nodes = 1;
  int node = 0;
  int ranks = 1;     // of this host
  std::string host;  // where node 0 serves the store
  std::uint16_t port = 0;
  std::string job_id;  // as the user named it; empty: not named
  std::string secret;
  std::string version;            // gradwire's
  int max_restarts = 0;           // node 0's counts
  std::uint16_t master_port = 0;  // the same; 0: any free one
  std::chrono::milliseconds rendezvous_timeout{};
  std::chrono::milliseconds heartbeat_timeout{};
};

// Why the job cannot go on, or never began, for this launcher.
struct Failure {
  int exit_code = 0;
  std::string what;
};

// What happens, in this order: a Plan, its Verdict, after a Verdict `restart` the next Plan, and so on; or a Failure,
// after which nothing comes.
using Event = std::variant<Plan, Verdict, Failure>;

// Runs on a thread of its own; its methods do not block and are for one thread.
//
// Node 0 watches all other nodes and they watch node 0. One that is not heard of for heartbeat_timeout has vanished:
// its host is gone, or its network, or its launcher. Of a node other than 0 the others learn it from node 0.
class Coordinator final {
 public:
  explicit Coordinator(CoordinatorOptions options);
  // Leaves without a word when no Verdict has come; waits for a call to a store that does not answer, up to
  // heartbeat_timeout.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Readable while next() has something.
  int event_fd() const noexcept;
  std::optional<Event> next();
  // Readable once the attempt at hand has failed elsewhere, so that this host's ranks are to be stopped.
  int alarm_fd() const noexcept;

  // After a Plan: no rank of this host runs any more. A Verdict or a Failure follows, when all hosts have said so.
  void ranks_ended(const NodeEnd& end);
  // Ends the job on all hosts; an event follows. For when no ranks run.
  void leave(const NodeEnd& why);

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::launch
