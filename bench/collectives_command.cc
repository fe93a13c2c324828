// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/collectives_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.h"
#include "bench/coordinator.h"
#include "bench/sizes.h"
#include "bench/statistics.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_names.h"

namespace gradwire::bench {
namespace {

struct Peer {
  std::string title;
  std::string contestant;
};

// What a peer did, or why it did not.
struct PeerResult {
  std::string title;
  Summary times;
  Ratio ratio;  // its time over ours
  std::string refusal;
};

struct Row {
  std::string collective;
  std::size_t bytes = 0;
  Summary ours;
  std::vector<PeerResult> peers;
};

void require_collectives(const std::vector<std::string>& names) {
  const auto& known = known_collectives();
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw InvalidArgument(
          concat("--collective ", name, ": there is no such collective; known are ", join(known, ", ")));
    }
  }
}

void require_shares(const CollectivesCommandOptions& options) {
  const std::size_t unit = sizeof(float) * static_cast<std::size_t>(options.world);
  for (const std::size_t size : options.bytes) {
    if (size == 0 || size % unit != 0) {
      throw InvalidArgument(concat("--bytes ", size, ": it must be a multiple of ", unit,
                                   ", a float32 for each of the ", options.world, " ranks"));
    }
  }
}

Row measure_collective(Coordinator& coordinator, const CollectivesCommandOptions& options,
                       const std::vector<Peer>& peers, const std::string& collective, std::size_t bytes) {
  const auto budget = (std::size_t{64} << 20) / std::max<std::size_t>(bytes, 1);
  const int iterations = static_cast<int>(std::clamp<std::size_t>(budget, 3, 200));
  const Measurement what{bytes, iterations, std::min(iterations, 5), collective, false};
  Row row{collective, bytes, {}, {}};
  std::vector<Entrant> entrants{{"gradwire", "gradwire", what}};
  for (const Peer& peer : peers) {
    row.peers.push_back(
        {peer.title, {}, {}, refusal_of(coordinator, peer.contestant, {bytes, 1, 0, collective, false})});
    if (row.peers.back().refusal.empty()) entrants.push_back({peer.title, peer.contestant, what});
  }
  const auto turns = measure_in_turn(coordinator, entrants, options.rounds);
  const Turns& ours = turns.at("gradwire");
  row.ours = summarize(ours.samples());
  for (PeerResult& peer : row.peers) {
    if (!peer.refusal.empty()) continue;
    const Turns& own = turns.at(peer.title);
    peer.times = summarize(own.samples());
    peer.ratio = ratio_of_medians(own.blocks, ours.blocks);
  }
  return row;
}

double bandwidth_of(std::size_t bytes, const Summary& times) { return static_cast<double>(bytes) / times.median / 1e3; }

void print_json(const CollectivesCommandOptions& options, const Row& row) {
  nlohmann::json line{{"benchmark", "collectives"},  {"collective", row.collective},
                      {"backend", options.backend},  {"world", options.world},
                      {"bytes", row.bytes},          {"median_us", row.ours.median},
                      {"p10_us", row.ours.p10},      {"p90_us", row.ours.p90},
                      {"samples", row.ours.samples}, {"algbw_gbps", bandwidth_of(row.bytes, row.ours)}};
  if (options.hosts) {
    line["hosts"] = options.hosts->hosts;
    line["rate"] = options.hosts->rate;
  }
  for (const PeerResult& peer : row.peers) {
    nlohmann::json& entry = line["peers"][peer.title];
    if (!peer.refusal.empty()) {
      entry = {{"none", peer.refusal}};
      continue;
    }
    entry = {{"median_us", peer.times.median}, {"p10_us", peer.times.p10},    {"p90_us", peer.times.p90},
             {"ratio", peer.ratio.value},      {"ratio_low", peer.ratio.low}, {"ratio_high", peer.ratio.high}};
  }
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const Row& row) {
  std::printf("%-15s %8s %10.1f us [%.1f .. %.1f] %8.2f GB/s", row.collective.c_str(), format_bytes(row.bytes).c_str(),
              row.ours.median, row.ours.p10, row.ours.p90, bandwidth_of(row.bytes, row.ours));
  for (const PeerResult& peer : row.peers) {
    if (peer.refusal.empty()) {
      std::printf("   %s %10.1f us %8.2fx [%.2f, %.2f]", peer.title.c_str(), peer.times.median, peer.ratio.value,
                  peer.ratio.low, peer.ratio.high);
    } else {
      std::printf("   %s: %s", peer.title.c_str(), peer.refusal.c_str());
    }
  }
  std::printf("\n");
}

void print_head(const CollectivesCommandOptions& options) {
  std::printf(
      "collectives: backend %s, %d ranks, one thread each%s, %d processors; float32 sums on ordinary tensors\nbytes of "
      "the largest tensor of a call, median [p10 .. p90] on rank 0, bytes over that time",
      options.backend.c_str(), options.world, options.pin ? ", pinned" : "",
      static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (options.hosts) std::printf("\n%s", describe(*options.hosts).c_str());
  if (options.peers) std::printf("; then each peer's time, and it over ours [95%% interval of the ratio]");
  std::printf("\n\n");
}

}  // namespace

const std::vector<std::string>& known_collectives() {
  static const std::vector<std::string> names{"all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
                                              "scatter",    "reduce_scatter", "all_to_all", "send_recv",  "barrier"};
  return names;
}

void run_collectives(const CollectivesCommandOptions& options) {
  require_world(options.world);
  require_backend(options.backend, backend_names());
  require_collectives(options.collectives);
  require_shares(options);
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  coordinator.start(gradwire_contestant({options.backend, options.world, options.pin}, {"collective-worker"}, scratch,
                                        socket, options.hosts));
  std::vector<Peer> peers;
  if (options.peers) {
    const PeerOptions peer{options.world, "f32", "sum", options.pin, options.python, options.hosts};
    coordinator.start(gloo_contestant(peer, scratch, socket));
    peers.push_back({"Gloo (PyTorch)", "gloo"});
    coordinator.start(mpi_contestant(peer, socket));
    peers.push_back({"OpenMPI", "openmpi"});
  }
  if (!options.json) print_head(options);
  for (const std::string& collective : options.collectives.empty() ? known_collectives() : options.collectives) {
    for (const std::size_t bytes : collective == "barrier" ? std::vector<std::size_t>{0} : options.bytes) {
      const Row row = measure_collective(coordinator, options, peers, collective, bytes);
      options.json ? print_json(options, row) : print_row(row);
      std::fflush(stdout);
    }
  }
}

}  // namespace gradwire::bench
