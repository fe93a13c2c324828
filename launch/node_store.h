// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The store through which the launchers of a job communicate: which nodes take part, which attempt runs, how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/store/tcp_store.h"
#include "launch/interruption.h"
#include "launch/node_coordinator_options.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// Node 0 has not answered for heartbeat_timeout.
class NodeZeroLost final : public Error {
 public:
  explicit NodeZeroLost(const std::string& reason, bool was_replaced = false)
      : Error(reason), was_replaced_(was_replaced) {}
  // Whether the store answers, and is another one than before.
  bool was_replaced() const noexcept { return was_replaced_; }

 private:
  bool was_replaced_;
};

// Access to the store; docs/format/launcher.md specifies the keys. A method blocks for at most heartbeat_timeout unless
// it states another limit, and throws NodeZeroLost when the store has not answered by then. A shorter break of the
// network is no error. For one thread.
class NodeStore final {
 public:
  // On node 0 starts the store; on the other nodes connects to the store, until rendezvous_timeout. Checks that the
  // store belongs to this job, and takes this node's place. Throws LaunchError: the port is in use, the secret is
  // wrong, another version, another job, a launcher that is alive has the place, or no store answers in time.
  NodeStore(const NodeCoordinatorOptions& options, const NodeRecord& self, Interruption& interruption);

  // Sends one heartbeat of this launcher. Also throws NodeZeroLost when another store has taken the place of the one
  // that had the heartbeats before.
  void beat();
  // Returns the number of heartbeats of every node of an attempt. Heartbeats belong to a launcher, not to a node: when
  // a new launcher takes a node's place, the attempt of the old launcher is over.
  std::vector<std::int64_t> beats(const Plan& plan);
  // Whether any launcher has ever taken the place of `node`.
  bool has_come(int node);

  bool has(const std::string& key);
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key);
  // Waits until `key` exists, for moment() at most. Call has() afterwards to learn whether the key exists.
  void wait_a_moment(const std::string& key);

  // The time between two reads of the store.
  Milliseconds moment() const noexcept { return moment_; }

 private:
  template <class Call>
  auto ask(Call call);
  void serve();
  void connect();
  void check_job();
  void take_place(const NodeRecord& self);
  bool is_alive(const NodeRecord& other);

  const NodeCoordinatorOptions& options_;
  const std::string launcher_;
  Interruption& interruption_;
  Milliseconds moment_;
  std::unique_ptr<TcpStore> store_;
  Deadline::Clock::time_point heard_;
  std::int64_t beats_ = 0;  // the count of this launcher's
};

}  // namespace gradwire::launch
