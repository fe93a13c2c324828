// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/network_command.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/collectives_command.h"
#include "bench/hooks_command.h"
#include "bench/network_hosts.h"

namespace gradwire::bench {
namespace {

constexpr int kSkipped = 77;

const std::vector<std::string> kHooks{"allreduce", "fp16_compress", "bf16_compress", "int8",
                                      "int4",      "one_bit",       "top_k",         "power_sgd:rank=4"};

// A file in `scratch` with the program that stands for ssh.
std::string write_shell(const NetworkHosts& hosts, const ScratchFolder& scratch) {
  const std::string path = scratch / "log-in";
  std::ofstream(path) << hosts.shell_script();
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

RankHosts hosts_of(const NetworkCommandOptions& options, const NetworkHosts& hosts, const ScratchFolder& scratch) {
  RankHosts network;
  network.hosts = options.hosts;
  network.ranks_per_host = options.ranks_per_host;
  network.placement = options.placement;
  network.rate = options.rate == "none" ? "" : options.rate;
  network.delay = options.delay;
  for (int rank = 0; rank < options.hosts * options.ranks_per_host; ++rank) {
    const bool neighbours = options.placement == kPlacements.front();
    const int host = neighbours ? rank / options.ranks_per_host : rank % options.hosts;
    network.enter.push_back(hosts.enter(host));
    network.names.push_back(hosts.name(host));
  }
  network.shell = write_shell(hosts, scratch);
  network.sent_bytes = [&hosts] {
    std::uint64_t sum = 0;
    for (int host = 0; host < hosts.count(); ++host) sum += hosts.traffic(host).sent;
    return sum;
  };
  return network;
}

// What the command that measures over `backend` has in common with this one.
template <class Each>
Each options_of(const NetworkCommandOptions& options, const std::string& backend) {
  Each each;
  each.backend = backend;
  each.world = options.hosts * options.ranks_per_host;
  each.bytes = options.bytes;
  each.rounds = options.rounds;
  each.peers = options.peers;
  each.json = options.json;
  each.python = options.python;
  return each;
}

void measure_hooks(const NetworkCommandOptions& options, const std::string& backend, const RankHosts& ranks) {
  auto each = options_of<HooksCommandOptions>(options, backend);
  each.hooks = options.hooks.empty() ? kHooks : options.hooks;
  each.network = ranks;
  run_hooks(each);
}

void measure_collectives(const NetworkCommandOptions& options, const std::string& backend, const RankHosts& ranks) {
  auto each = options_of<CollectivesCommandOptions>(options, backend);
  each.collectives = options.collectives;
  each.hosts = ranks;
  run_collectives(each);
}

}  // namespace

int run_network(const NetworkCommandOptions& options) {
  const std::string reason = NetworkHosts::why_not();
  if (!reason.empty()) {
    std::fprintf(stderr, "gradwire-bench: skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  NetworkHosts hosts(options.hosts);
  if (options.rate != "none") hosts.shape(options.rate);
  if (!options.delay.empty()) hosts.delay(options.delay);
  const ScratchFolder scratch;
  const RankHosts ranks = hosts_of(options, hosts, scratch);
  for (const std::string& backend : options.backends) {
    options.collectives.empty() ? measure_hooks(options, backend, ranks) : measure_collectives(options, backend, ranks);
  }
  return 0;
}

}  // namespace gradwire::bench
