// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/all_reduce_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/contestants.h"
#include "bench/contract_cost.h"
#include "bench/coordinator.h"
#include "bench/sizes.h"
#include "bench/statistics.h"
#include "gradwire/base/dtype.h"
#include "gradwire/base/error.h"
#include "gradwire/base/reduce_op.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

// A contestant as the table shows it: whose ranks, with which placement.
struct Column {
  std::string title;
  std::string contestant;
  std::string variant;
  bool ours;
};

int iterations_for(std::size_t bytes, bool cold) {
  const std::size_t budget = (std::size_t{64} << 20) / std::max<std::size_t>(bytes, 1);
  return static_cast<int>(std::clamp<std::size_t>(budget, 3, cold ? 10 : 200));
}

std::map<std::string, Turns> measure_size(Coordinator& coordinator, const AllReduceOptions& options,
                                          const std::vector<Column>& columns, std::size_t bytes) {
  const int iterations = iterations_for(bytes, options.cold);
  std::vector<Entrant> entrants;
  for (const Column& column : columns) {
    entrants.push_back(
        {column.title, column.contestant, {bytes, iterations, std::min(iterations, 5), column.variant, options.cold}});
  }
  return measure_in_turn(coordinator, entrants, options.rounds);
}

void report(const AllReduceOptions& options, const std::vector<Column>& columns, std::size_t bytes,
            const std::map<std::string, Turns>& turns) {
  nlohmann::json line{{"benchmark", "all_reduce"},
                      {"backend", options.backend},
                      {"world", options.world},
                      {"bytes", bytes},
                      {"dtype", options.dtype},
                      {"op", options.op},
                      {"buffers", options.cold ? "cold" : "hot"}};
  const auto mine = std::find_if(columns.begin(), columns.end(), [](const Column& column) { return column.ours; });
  for (const Column& column : columns) {
    const Turns& own = turns.at(column.title);
    const Summary summary = summarize(own.samples());
    const double gbps = static_cast<double>(bytes) / summary.median / 1e3;
    nlohmann::json entry{{"median_us", summary.median},
                         {"p10_us", summary.p10},
                         {"p90_us", summary.p90},
                         {"algbw_gbps", gbps},
                         {"samples", summary.samples}};
    std::string ratios;
    for (const Column& other : columns) {
      if (!other.ours || column.ours) continue;
      const Ratio ratio = ratio_of_medians(own.blocks, turns.at(other.title).blocks);
      char text[96];
      std::snprintf(text, sizeof(text), "  %s %.2fx [%.2f, %.2f]", other.variant.c_str(), ratio.value, ratio.low,
                    ratio.high);
      ratios += text;
      entry["over_" + other.title] = {{"ratio", ratio.value}, {"low", ratio.low}, {"high", ratio.high}};
    }
    if (!options.json) {
      std::printf("%9s  %-20s %10.1f us  [%.1f .. %.1f]  %8.2f GB/s%s\n", format_bytes(bytes).c_str(),
                  column.title.c_str(), summary.median, summary.p10, summary.p90, gbps, ratios.c_str());
    }
    if (mine != columns.end() && column.title == mine->title) {
      line["median_us"] = summary.median;
      line["algbw_gbps"] = gbps;
    }
    line["contestants"][column.title] = entry;
  }
  if (options.json) std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

void run_all_reduce(const AllReduceOptions& options) {
  const DType dtype = dtype_from_name(options.dtype);
  require_defined(reduce_op_from_name(options.op), dtype);
  require_world(options.world);
  require_backend(options.backend, raw_backends());
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  std::vector<Column> columns;
  coordinator.start(gradwire_contestant(
      {options.backend, options.world, options.pin},
      {"worker", "--contestant", "gradwire", "--dtype", options.dtype, "--op", options.op}, scratch, socket));
  if (options.in_place) columns.push_back({"gradwire in-place", "gradwire", "in-place", true});
  if (options.staged) columns.push_back({"gradwire staged", "gradwire", "staged", true});
  if (options.peers) {
    const PeerOptions peers{options.world, options.dtype, options.op, options.pin, options.python};
    coordinator.start(mpi_contestant(peers, socket));
    columns.push_back({"OpenMPI", "openmpi", "all_reduce", false});
    coordinator.start(gloo_contestant(peers, scratch, socket));
    columns.push_back({"Gloo (PyTorch)", "gloo", "all_reduce", false});
  }
  if (!options.json) {
    std::printf("all_reduce: backend %s, %d ranks, %s %s, %s buffers, %d processors%s\n", options.backend.c_str(),
                options.world, options.dtype.c_str(), options.op.c_str(), options.cold ? "cold" : "hot",
                static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), options.pin ? ", ranks pinned" : "");
    std::printf(
        "median [p10 .. p90] on rank 0; a peer's line ends with its time over ours [95%% interval of the ratio]\n");
  }
  for (const std::size_t bytes : options.bytes) {
    if (bytes % size_of(dtype) != 0)
      throw InvalidArgument(concat("--bytes ", bytes, " is no whole number of ", options.dtype));
    report(options, columns, bytes, measure_size(coordinator, options, columns, bytes));
  }
  if (!options.json) print_contract_cost(options.pin);
}

}  // namespace gradwire::bench
