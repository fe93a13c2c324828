// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Common parts of commands that let contestants measure in turn: the contestants' programs, and the turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/coordinator.h"

namespace gradwire::bench {

// The path of this program.
std::string own_path();

using Commands = std::vector<std::vector<std::string>>;

// Ranks on several hosts (see network_command.h).
struct RankHosts {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string placement;                      // of ranks on hosts, by name
  std::string rate;                           // in tc's units; empty: not limited
  std::string delay;                          // in tc's units; empty: none
  Commands enter;                             // by rank: the words before a program that run it on the rank's host
  std::vector<std::string> names;             // by rank: its host's
  std::string shell;                          // a program that runs a command line on a host, as ssh does
  std::function<std::uint64_t()> sent_bytes;  // that all hosts together have sent so far
};
// "2 hosts with 1 rank each (contiguous), a link of 1gbit a host".
std::string describe(const RankHosts& hosts);
// Sends the ranks of a contestant, whose commands are one for each rank, to their hosts. Without hosts: does nothing.
void place(const std::optional<RankHosts>& hosts, Contestant& contestant);

// gradwire's contestant. It runs `worker` (a subcommand of this program with its options) for the ranks: a process for
// each rank, one process for all ranks (threads), or the processes of mpirun (mpi). Only ranks that are processes can
// be on `hosts`.
struct RankProcesses {
  std::string backend;
  int world = 2;
  bool pin = true;
  std::string name = "gradwire";  // of the contestant
};
Contestant gradwire_contestant(const RankProcesses& ranks, std::vector<std::string> worker,
                               const ScratchFolder& scratch, const std::string& socket,
                               const std::optional<RankHosts>& hosts = std::nullopt);

// Returns the first words of the command that runs peers/`script` on one thread; the caller adds the script's
// arguments. Throws std::runtime_error when there is no `python`.
std::vector<std::string> python_peer(const std::string& python, const std::string& script);

// Returns the contestant `name` of PyTorch's: its ranks are processes of peers/`script`, whose arguments are `socket`,
// the path of a file in `scratch` to meet at, the rank, `world` and `words`. Throws as python_peer().
Contestant pytorch_contestant(const std::string& name, const std::string& python, const std::string& script, int world,
                              const ScratchFolder& scratch, const std::string& socket,
                              const std::vector<std::string>& words);

// How to start the ranks of a peer that can measure any collective. The variant of a measurement is the collective's
// name in known_collectives().
struct PeerOptions {
  int world = 2;
  std::string dtype = "f32";
  std::string op = "sum";
  bool pin = true;
  std::string python;                             // a Python with torch, for Gloo
  std::optional<RankHosts> hosts = std::nullopt;  // empty: all ranks are processes of this host
};
// Both throw std::runtime_error when the peer is missing.
Contestant gloo_contestant(const PeerOptions& options, const ScratchFolder& scratch, const std::string& socket);
Contestant mpi_contestant(const PeerOptions& options, const std::string& socket);

// Throw InvalidArgument.
void require_world(int world);
// The backend must be one of `known`.
void require_backend(const std::string& backend, const std::vector<std::string>& known);
// Returns the names of the backends below process groups.
std::vector<std::string> raw_backends();
void require_floats(const std::vector<std::size_t>& bytes);

// Lets `contestant` measure once. Returns "" when the measurement succeeds, else the reason of the failure. Throws as
// Coordinator::measure(), but not ContestantError.
std::string refusal_of(Coordinator& coordinator, const std::string& contestant, const Measurement& what);

// One series of measurements among those that take turns.
struct Entrant {
  std::string title;
  std::string contestant;
  Measurement what;
};

// The result of an entrant: samples in microseconds, one block for each turn, and the bytes of the last Reply.
struct Turns {
  std::vector<std::vector<double>> blocks;
  std::vector<double> slowest;  // of all blocks: the longest of all ranks
  std::size_t bytes = 0;
  std::size_t bytes_of_all = 0;

  std::vector<double> samples() const;
};

// Lets the entrants measure in the order A B C, then C B A, `rounds` times, so that a slow drift of the machine affects
// all of them equally. Returns the results by title. Throws as Coordinator::measure().
std::map<std::string, Turns> measure_in_turn(Coordinator& coordinator, const std::vector<Entrant>& entrants,
                                             int rounds);

}  // namespace gradwire::bench
