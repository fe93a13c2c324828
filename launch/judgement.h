// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decisions of a launcher, as pure functions, so that tests need neither a network nor a clock. The coordinator
// reads the store, calls decide() and performs the actions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/watched_time.h"
#include "launch/node_coordinator_options.h"
#include "launch/node_events.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// The state of one launcher in its job.
struct Position {
  using Time = Deadline::Clock::time_point;
  enum class Phase {
    gathering,  // node 0: waits until all others have joined the next attempt
    joining,    // any other node: waits until node 0 begins the next attempt
    running,    // an attempt runs
    orphaned,   // node 0 is gone, and this host's ranks are being stopped
    leaving,    // the job is over for this launcher, and other nodes may still need node 0's store
    over,       // nothing is left to do
  };
  Phase phase = Phase::gathering;
  std::optional<Time> since;  // when the phase began
  bool told_waiting = false;  // gathering: the user was told which nodes are missing
  NodeRecord self;
  int round = 0;              // the number of the current attempt in the store
  std::optional<Plan> plan;   // of the attempt that runs or was just broken off
  std::optional<int> joined;  // joining: the round that this node has joined
  std::string last_attempt;   // joining: the last attempt that this node took part in: node 0's launcher and the round
  std::string broken_off;     // why this node left that attempt, if node 0 does not know
  bool over = false;          // running: the attempt has failed somewhere
  std::optional<Time> interruption_heard_at;  // running: of another node, whose ranks have ended
  bool reported = false;                      // running: this node's end record is in the store
  bool told_leaving = false;                  // running: the store shows that this launcher was told to leave
  // running, node 0, by node
  std::vector<std::int64_t> beats;
  WatchedTime watched;                          // passes while this launcher reads the beats
  std::vector<WatchedTime::Duration> heard_at;  // when the beats last grew, as `watched` has it
  std::vector<std::optional<NodeEnd>> ends;
  std::vector<int> gone;             // the nodes that vanished
  std::optional<NodeEvent> outcome;  // leaving: the event for the user at the end
};

// Returns the state in which a launcher begins.
Position first_position(const NodeCoordinatorOptions& options, const NodeRecord& self);

// Why a launcher has lost node 0.
struct Lost {
  std::string reason;         // the last error
  bool was_replaced = false;  // false: node 0 has not answered for heartbeat_timeout
};

// The information that a launcher has at one moment. The first part is always set; the other parts are set in the
// phases that they name.
struct Heard {
  Position::Time now{};
  bool rank_failed = false;        // a rank of this host has failed, which ends the attempt
  bool interrupted = false;        // this host's ranks were told to end, by a signal to this launcher
  std::optional<NodeEnd> own_end;  // no rank of this host runs any more
  std::optional<NodeEnd> leaving;  // this launcher was told to end the job
  std::optional<Lost> lost;        // of node 0
  std::optional<Failure> problem;  // the store holds something that belongs to no job of gradwire-run
  // gathering and joining
  std::optional<NodeEnd> quit;
  // gathering
  std::vector<int> absent;         // the nodes that have not joined position.round
  std::vector<NodeRecord> joined;  // once no node is absent: all other nodes, in order
  std::uint16_t free_port = 0;     // once no node is absent, unless the user named a port
  // joining
  int round = 0;
  std::optional<Plan> plan;  // of that round
  // running
  bool over = false;                         // a rank of some node has failed
  bool over_by_interruption = false;         // a node was interrupted, and none has said that a rank failed
  std::vector<std::int64_t> beats;           // node 0, by node
  std::vector<std::optional<NodeEnd>> ends;  // node 0, by node: the records in the store
  std::optional<Verdict> next;               // any other node
  // leaving, node 0: the nodes that took part and may still need the store
  std::vector<int> staying;
};

// The actions of a decision; the coordinator performs them in the order of Decision::actions.
struct PutRecord {
  std::string key;
  std::string value;
};
struct BeginAttempt {};  // begin Position::plan: tell the user, and start this host's ranks
struct StopRanks {};     // the attempt has failed on another host: stop this host's ranks
struct Tell {
  NodeEvent event;
};
using Action = std::variant<PutRecord, BeginAttempt, StopRanks, Tell>;

struct Decision {
  Position position;
  std::vector<Action> actions;
  std::string wait_for;  // the key whose change is most likely the next news; empty: decide again at once
};

// Decides what the launcher does next. The result depends on the arguments only.
Decision decide(const NodeCoordinatorOptions& options, const Position& position, const Heard& heard);

// "1.5 s"
std::string seconds_text(Milliseconds time);

}  // namespace gradwire::launch
