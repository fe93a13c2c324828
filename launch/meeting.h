// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The store in which the launchers of a job meet: who is there, which attempt runs, how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/store/tcp_store.h"
#include "launch/coordinator.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// Node 0 has not answered for heartbeat_timeout.
class NodeZeroLost final : public Error {
 public:
  using Error::Error;
};

// How somebody who waits in a Meeting is called away: both throw then.
class Interruption {
 public:
  virtual ~Interruption() = default;
  virtual void check() = 0;
  virtual void pause(Milliseconds time) = 0;
};

// The keys and their use; docs/format/launcher.md. Methods block, at most for heartbeat_timeout where none is given,
// and throw NodeZeroLost; a short break of the network passes unnoticed. One thread.
class Meeting final {
 public:
  // Starts the store on node 0, connects to it elsewhere, until rendezvous_timeout; checks that it is this job's and
  // takes this node's place. Throws LaunchError: the port is in use, the secret is wrong, another version, another job,
  // the place is taken by a launcher that is alive, nobody there in time.
  Meeting(const CoordinatorOptions& options, const NodeRecord& self, Interruption& interruption);

  // Tells the others that this node is there.
  void beat();
  // The number of beats of all who take part in an attempt. They belong to a launcher, not to a node: when one is
  // started anew, the attempt of the one before it is over all the same.
  std::vector<std::int64_t> beats(const Plan& plan);
  // Whether a node has taken its place, ever.
  bool has_come(int node);

  bool has(const std::string& key);
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key);
  // Waits until `key` is there, a moment at most; says nothing about whether it is.
  void wait_a_moment(const std::string& key);

  // Between two looks at the store.
  Milliseconds moment() const noexcept { return moment_; }

 private:
  template <class Call>
  auto ask(Call call);
  void serve();
  void connect(Deadline deadline);
  void check_job();
  void take_place(const NodeRecord& self);
  bool is_alive(const NodeRecord& other);

  const CoordinatorOptions& options_;
  const std::string launcher_;
  Interruption& interruption_;
  Milliseconds moment_;
  std::unique_ptr<TcpStore> store_;
  Deadline::Clock::time_point heard_;
};

}  // namespace gradwire::launch
