// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a launcher makes of what it hears: pure functions, so that each rule can be tested without a network or a clock.
// The coordinator hears and acts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gradwire/base/deadline.h"
#include "launch/coordinator.h"
#include "launch/node_records.h"

namespace gradwire::launch {

// Where one launcher stands in its job, and what it remembers.
struct Position {
  using Time = Deadline::Clock::time_point;
  enum class Phase {
    gathering,  // node 0: waits until all others have joined the next attempt
    joining,    // any other node: waits until node 0 begins the next attempt
    running,    // an attempt runs
    orphaned,   // node 0 is gone, and this host's ranks are being stopped
    leaving,    // the job is over for this launcher, and node 0's store may still be needed
    over,       // nothing is left to do
  };
  Phase phase = Phase::gathering;
  std::optional<Time> since;  // when the phase began
  bool told_waiting = false;  // gathering: the user knows who is missing
  NodeRecord self;
  int round = 0;              // the number of the attempt at hand in the store
  std::optional<Plan> plan;   // of the attempt that runs or has just been broken off
  std::optional<int> joined;  // joining: the round that this node has joined
  std::string last_attempt;   // joining: the last attempt that this node took part in: node 0's launcher and the round
  std::string broken_off;     // why this node left that attempt, where node 0 does not know
  bool over = false;          // running: the attempt has failed somewhere
  bool reported = false;      // running: the others know how it ended here
  bool told_leaving = false;  // running: the others know that this launcher was told to leave
  // running, node 0, by node
  std::vector<std::int64_t> beats;
  std::vector<Time> heard_at;  // when the beats last grew
  std::vector<std::optional<NodeEnd>> ends;
  std::vector<int> gone;         // the nodes that vanished
  std::optional<Event> outcome;  // leaving: what the user is told at the end
};

// Where a launcher begins.
Position first_position(const CoordinatorOptions& options, const NodeRecord& self);

// What a launcher knows at one moment. The first part is always there, of the rest what the phase asks for.
struct Heard {
  Position::Time now{};
  std::optional<NodeEnd> own_end;   // no rank of this host runs any more
  std::optional<NodeEnd> leaving;   // this launcher was told to end the job
  std::optional<std::string> lost;  // node 0 has not answered for heartbeat_timeout: the last error
  std::optional<Failure> problem;   // the store holds something that belongs to no job of gradwire-run
  // gathering and joining
  std::optional<NodeEnd> quit;
  // gathering
  std::vector<int> absent;         // the nodes that have not joined position.round
  std::vector<NodeRecord> joined;  // once nobody is absent: all other nodes, in order
  std::uint16_t free_port = 0;     // the same, unless the user named a port
  // joining
  int round = 0;
  std::optional<Plan> plan;  // of that round
  // running
  bool over = false;
  std::vector<std::int64_t> beats;           // node 0, by node
  std::vector<std::optional<NodeEnd>> ends;  // node 0, by node: what stands in the store
  std::optional<Verdict> next;               // any other node
  // leaving, node 0: the nodes that have come and have not said that they need the store no more
  std::vector<int> staying;
};

// What is to be done, in the order of Decision::actions.
struct Put {
  std::string key;
  std::string value;
};
struct BeginAttempt {};  // Position::plan; the user is told, and this host's ranks are started
struct StopRanks {};     // the attempt has failed elsewhere: this host's ranks are to be stopped
struct Tell {
  Event event;
};
using Action = std::variant<Put, BeginAttempt, StopRanks, Tell>;

struct Decision {
  Position position;
  std::vector<Action> actions;
  std::string wait_for;  // the key whose coming is the next news, most likely; empty: decide again at once
};

// What the launcher does next. A function of its arguments and nothing else.
Decision decide(const CoordinatorOptions& options, const Position& position, const Heard& heard);

// "1.5 s"
std::string seconds_text(Milliseconds time);

}  // namespace gradwire::launch
