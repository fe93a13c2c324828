// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/contestants.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

// The coordinator's ranks of one host, more of them than processors perhaps.
const std::vector<std::string> kMpirun{
    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "--oversubscribe", "--bind-to", "none"};

void append(std::vector<std::string>& command, const std::vector<std::string>& words) {
  command.insert(command.end(), words.begin(), words.end());
}

// The commands, one a rank, as one mpirun's, which starts on the first rank's host.
Commands under_mpirun(const Commands& ranks, const std::optional<RankHosts>& hosts) {
  std::vector<std::string> one;
  if (hosts) one = hosts->enter.front();
  one.emplace_back("env");
  append(one, kMpirun);
  if (hosts) {
    append(one, {"--mca", "plm_rsh_agent", hosts->shell, "--mca", "oob_tcp_if_include", "eth0", "--mca",
                 "btl_tcp_if_include", "eth0", "--mca", "pml", "ob1"});
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank > 0) one.emplace_back(":");
    append(one, {"-n", "1"});
    if (hosts) append(one, {"--host", hosts->names[rank]});
    one.emplace_back("env");
    append(one, ranks[rank]);
  }
  return {one};
}

}  // namespace

std::string describe(const RankHosts& hosts) {
  return concat(hosts.hosts, " hosts with ", hosts.ranks_per_host, hosts.ranks_per_host == 1 ? " rank" : " ranks",
                " each (", hosts.placement, "), a link of ", hosts.rate.empty() ? "no limit" : hosts.rate,
                hosts.delay.empty() ? "" : " and a delay of ", hosts.delay, " a host");
}

void place(const std::optional<RankHosts>& hosts, Contestant& contestant) {
  if (!hosts) return;
  for (std::size_t rank = 0; rank < contestant.commands.size(); ++rank) {
    auto& words = contestant.commands[rank];
    const auto& enter = hosts->enter[rank];
    // The environment stays in front.
    const auto program = std::find_if(words.begin(), words.end(),
                                      [](const std::string& word) { return word.find('=') == std::string::npos; });
    words.insert(program, enter.begin(), enter.end());
    words.insert(words.begin(), "GLOO_SOCKET_IFNAME=eth0");  // Gloo looks its own host's name up otherwise
  }
}

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

Contestant gradwire_contestant(const RankProcesses& ranks, std::vector<std::string> worker,
                               const ScratchFolder& scratch, const std::string& socket,
                               const std::optional<RankHosts>& hosts) {
  Contestant made{ranks.name, {}, ranks.world};
  const int processes = ranks.backend == "threads" ? 1 : ranks.world;
  for (int rank = 0; rank < processes; ++rank) {
    std::vector<std::string>& command = made.commands.emplace_back();
    command = {"OMP_NUM_THREADS=1", own_path()};
    append(command, worker);
    append(command, {"--backend", ranks.backend, "--socket", socket, "--rendezvous", scratch / ranks.name, "--rank",
                     std::to_string(rank), "--world", std::to_string(ranks.world), ranks.pin ? "--pin" : "--no-pin"});
  }
  if (ranks.backend == "mpi") {
    made.commands = under_mpirun(made.commands, hosts);
  } else {
    place(hosts, made);
  }
  return made;
}

std::vector<std::string> python_peer(const std::string& python, const std::string& script) {
  if (!std::filesystem::exists(python)) {
    throw std::runtime_error("the peer PyTorch needs a Python with torch; " + python +
                             " is not there (run `make setup`, or name one with --python)");
  }
  return {"OMP_NUM_THREADS=1", python, std::filesystem::path(GRADWIRE_BENCH_SOURCE_DIR) / "peers" / script};
}

Contestant pytorch_contestant(const std::string& name, const std::string& python, const std::string& script, int world,
                              const ScratchFolder& scratch, const std::string& socket,
                              const std::vector<std::string>& words) {
  const std::vector<std::string> peer = python_peer(python, script);
  Contestant made{name, {}, world};
  for (int rank = 0; rank < world; ++rank) {
    std::vector<std::string>& command = made.commands.emplace_back(peer);
    append(command, {socket, scratch / name, std::to_string(rank), std::to_string(world)});
    append(command, words);
  }
  return made;
}

Contestant gloo_contestant(const PeerOptions& options, const ScratchFolder& scratch, const std::string& socket) {
  Contestant made = pytorch_contestant("gloo", options.python, "gloo_worker.py", options.world, scratch, socket,
                                       {options.dtype, options.op, options.pin ? "pin" : "free"});
  place(options.hosts, made);
  return made;
}

Contestant mpi_contestant(const PeerOptions& options, const std::string& socket) {
  const std::filesystem::path program = std::filesystem::path(own_path()).parent_path() / "gradwire-bench-mpi";
  if (!std::filesystem::exists(program)) {
    throw std::runtime_error("the peer OpenMPI is missing: " + program.string() +
                             " was not built (`make setup` installs OpenMPI, `make build` builds it)");
  }
  Contestant made{"openmpi", {}, options.world};
  for (int rank = 0; rank < options.world; ++rank)
    made.commands.push_back({program, socket, options.dtype, options.op, options.pin ? "pin" : "free"});
  made.commands = under_mpirun(made.commands, options.hosts);
  return made;
}

void require_world(int world) {
  if (world < 1 || world > 64) throw InvalidArgument(concat("--world ", world, ": it must be from 1 to 64"));
}

void require_backend(const std::string& backend, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), backend) != known.end()) return;
  throw InvalidArgument(concat("--backend ", backend, ": there is no such backend; known are ", join(known, ", ")));
}

std::vector<std::string> raw_backends() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : builtin_backends()) names.emplace_back(entry.name);
  return names;
}

void require_floats(const std::vector<std::size_t>& bytes) {
  for (const std::size_t size : bytes) {
    if (size == 0 || size % sizeof(float) != 0)
      throw InvalidArgument(concat("--bytes ", size, ": it must be a whole number of float32, and at least one"));
  }
}

std::string refusal_of(Coordinator& coordinator, const std::string& contestant, const Measurement& what) {
  try {
    coordinator.measure(contestant, what);
    return "";
  } catch (const ContestantError& error) {
    return error.text();
  }
}

std::vector<double> Turns::samples() const {
  std::vector<double> all;
  for (const auto& block : blocks) all.insert(all.end(), block.begin(), block.end());
  return all;
}

std::map<std::string, Turns> measure_in_turn(Coordinator& coordinator, const std::vector<Entrant>& entrants,
                                             int rounds) {
  std::map<std::string, Turns> turns;
  std::vector<Entrant> order = entrants;
  for (int half = 0; half < 2 * rounds; ++half) {
    for (const Entrant& entrant : order) {
      Reply reply = coordinator.measure(entrant.contestant, entrant.what);
      Turns& own = turns[entrant.title];
      own.blocks.push_back(std::move(reply.samples));
      own.slowest.insert(own.slowest.end(), reply.slowest.begin(), reply.slowest.end());
      own.bytes = reply.bytes;
      own.bytes_of_all = reply.bytes_of_all;
    }
    std::reverse(order.begin(), order.end());
  }
  return turns;
}

}  // namespace gradwire::bench
