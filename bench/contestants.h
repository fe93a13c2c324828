// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What commands share that let contestants measure in turn: their programs, and the turns.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/coordinator.h"

namespace gradwire::bench {

// The path of this program.
std::string own_path();

using Commands = std::vector<std::vector<std::string>>;

// The ranks of gradwire's contestant, which runs `worker` (a subcommand of this program and options of its own) for
// each: a process a rank, or (threads) one for all, or (mpi) mpirun's. `place`, where there is one, changes the
// commands of ranks that are processes of their own.
struct RankProcesses {
  std::string backend;
  int world = 2;
  bool pin = true;
};
Contestant gradwire_contestant(const RankProcesses& ranks, std::vector<std::string> worker,
                               const ScratchFolder& scratch, const std::string& socket,
                               const std::function<void(Contestant&)>& place = nullptr);

// The start of the command that runs peers/`script` on one thread; the script's arguments follow. Throws
// std::runtime_error when there is no `python`.
std::vector<std::string> python_peer(const std::string& python, const std::string& script);

// The ranks of the contestant `name`, of PyTorch's: processes of peers/`script`, whose arguments are `socket`, the path
// of a file in `scratch` to meet at, the rank, `world` and `words`. Throws as python_peer().
Contestant pytorch_contestant(const std::string& name, const std::string& python, const std::string& script, int world,
                              const ScratchFolder& scratch, const std::string& socket,
                              const std::vector<std::string>& words);

// How the ranks of a peer are started that does any collective; the variant of a measurement names it, as in
// known_collectives().
struct PeerOptions {
  int world = 2;
  std::string dtype = "f32";
  std::string op = "sum";
  bool pin = true;
  std::string python;  // that has torch, for Gloo
};
// Both throw std::runtime_error when the peer is missing.
Contestant gloo_contestant(const PeerOptions& options, const ScratchFolder& scratch, const std::string& socket);
Contestant mpi_contestant(const PeerOptions& options, const std::string& socket);

// Throw InvalidArgument.
void require_world(int world);
// One of `known`.
void require_backend(const std::string& backend, const std::vector<std::string>& known);
// The names of backends below process groups.
std::vector<std::string> raw_backends();
void require_floats(const std::vector<std::size_t>& bytes);

// Has `contestant` measure once: nothing, or why it cannot. Throws as Coordinator::measure(), but not ContestantError.
std::string refusal_of(Coordinator& coordinator, const std::string& contestant, const Measurement& what);

// One who takes turns.
struct Entrant {
  std::string title;
  std::string contestant;
  Measurement what;
};

// What came of an entrant: samples in microseconds, a block a turn, and the bytes of the last Reply.
struct Turns {
  std::vector<std::vector<double>> blocks;
  std::size_t bytes = 0;
  std::size_t bytes_of_all = 0;

  std::vector<double> samples() const;
};

// A B C, then C B A, `rounds` times, so that slow drift of the machine falls on all alike. By title. Throws as
// Coordinator::measure().
std::map<std::string, Turns> measure_in_turn(Coordinator& coordinator, const std::vector<Entrant>& entrants,
                                             int rounds);

}  // namespace gradwire::bench
