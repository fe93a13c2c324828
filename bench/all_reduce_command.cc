// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/all_reduce_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/contract_cost.h"
#include "bench/coordinator.h"
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
  bool in_place;
  bool ours;
};

using Blocks = std::vector<std::vector<double>>;

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

Contestant gradwire_contestant(const AllReduceOptions& options, const ScratchFolder& scratch,
                               const std::string& socket) {
  Contestant made{"gradwire", {}, options.world};
  const int processes = options.backend == "threads" ? 1 : options.world;
  for (int rank = 0; rank < processes; ++rank) {
    made.commands.push_back({own_path(), "worker", "--backend", options.backend, "--socket", socket, "--rendezvous",
                             scratch / "gradwire", "--contestant", "gradwire", "--rank", std::to_string(rank),
                             "--world", std::to_string(options.world), "--dtype", options.dtype, "--op", options.op,
                             options.pin ? "--pin" : "--no-pin"});
  }
  return made;
}

Contestant gloo_contestant(const AllReduceOptions& options, const ScratchFolder& scratch, const std::string& socket) {
  const std::filesystem::path script = std::filesystem::path(GRADWIRE_BENCH_SOURCE_DIR) / "peers" / "gloo_worker.py";
  if (!std::filesystem::exists(options.python)) {
    throw std::runtime_error("the peer Gloo needs a Python with torch; " + options.python +
                             " is not there (run `make setup`, or name one with --python)");
  }
  Contestant made{"gloo", {}, options.world};
  for (int rank = 0; rank < options.world; ++rank) {
    made.commands.push_back({"OMP_NUM_THREADS=1", options.python, script, socket, scratch / "gloo",
                             std::to_string(rank), std::to_string(options.world), options.dtype, options.op,
                             options.pin ? "pin" : "free"});
  }
  return made;
}

Contestant mpi_contestant(const AllReduceOptions& options, const std::string& socket) {
  const std::filesystem::path program = std::filesystem::path(own_path()).parent_path() / "gradwire-bench-mpi";
  if (!std::filesystem::exists(program)) {
    throw std::runtime_error("the peer OpenMPI is missing: " + program.string() +
                             " was not built (`make bench` installs OpenMPI and builds it)");
  }
  return {"openmpi",
          {{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "--oversubscribe", "--bind-to",
            "none", "-n", std::to_string(options.world), program, socket, options.dtype, options.op,
            options.pin ? "pin" : "free"}},
          options.world};
}

int iterations_for(std::size_t bytes, bool cold) {
  const std::size_t budget = (std::size_t{64} << 20) / std::max<std::size_t>(bytes, 1);
  return static_cast<int>(std::clamp<std::size_t>(budget, 3, cold ? 10 : 200));
}

std::map<std::string, Blocks> measure_size(Coordinator& coordinator, const AllReduceOptions& options,
                                           const std::vector<Column>& columns, std::size_t bytes) {
  std::map<std::string, Blocks> blocks;
  for (int round = 0; round < options.rounds; ++round) {
    // A B C, then C B A: slow drift of the machine falls on all alike.
    std::vector<Column> order = columns;
    for (int half = 0; half < 2; ++half) {
      for (const Column& column : order) {
        const int iterations = iterations_for(bytes, options.cold);
        const Measurement what{bytes, iterations, std::min(iterations, 5), column.in_place ? "in-place" : "staged",
                               options.cold};
        blocks[column.title].push_back(coordinator.measure(column.contestant, what));
      }
      std::reverse(order.begin(), order.end());
    }
  }
  return blocks;
}

std::vector<double> flatten(const Blocks& blocks) {
  std::vector<double> all;
  for (const auto& block : blocks) all.insert(all.end(), block.begin(), block.end());
  return all;
}

void report(const AllReduceOptions& options, const std::vector<Column>& columns, std::size_t bytes,
            const std::map<std::string, Blocks>& blocks) {
  nlohmann::json line{{"benchmark", "all_reduce"},
                      {"backend", options.backend},
                      {"world", options.world},
                      {"bytes", bytes},
                      {"dtype", options.dtype},
                      {"op", options.op},
                      {"buffers", options.cold ? "cold" : "hot"}};
  const auto mine = std::find_if(columns.begin(), columns.end(), [](const Column& column) { return column.ours; });
  for (const Column& column : columns) {
    const Blocks& own = blocks.at(column.title);
    const Summary summary = summarize(flatten(own));
    const double gbps = static_cast<double>(bytes) / summary.median / 1e3;
    nlohmann::json entry{{"median_us", summary.median},
                         {"p10_us", summary.p10},
                         {"p90_us", summary.p90},
                         {"algbw_gbps", gbps},
                         {"samples", summary.samples}};
    std::string ratios;
    for (const Column& other : columns) {
      if (!other.ours || column.ours) continue;
      const Ratio ratio = ratio_of_medians(own, blocks.at(other.title));
      char text[96];
      std::snprintf(text, sizeof(text), "  %s %.2fx [%.2f, %.2f]", other.in_place ? "in-place" : "staged", ratio.value,
                    ratio.low, ratio.high);
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

std::size_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  unsigned long long number = 0;
  try {
    number = std::stoull(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  const int shift = unit.empty() ? 0 : unit == "Ki" ? 10 : unit == "Mi" ? 20 : unit == "Gi" ? 30 : -1;
  if (end == 0 || shift < 0 || text[0] == '-')
    throw InvalidArgument(concat("'", text, "' is no size; write 4096, 4Ki, 25Mi or 1Gi"));
  return static_cast<std::size_t>(number) << static_cast<unsigned>(shift);
}

std::string format_bytes(std::size_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30U, "Gi"}, std::pair{20U, "Mi"}, std::pair{10U, "Ki"}}) {
    if (bytes != 0 && bytes % (std::size_t{1} << shift) == 0) return std::to_string(bytes >> shift) + unit;
  }
  return std::to_string(bytes);
}

void run_all_reduce(const AllReduceOptions& options) {
  const DType dtype = dtype_from_name(options.dtype);
  require_defined(reduce_op_from_name(options.op), dtype);
  if (options.world < 1 || options.world > 64)
    throw InvalidArgument(concat("--world ", options.world, ": it must be from 1 to 64"));
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  std::vector<Column> columns;
  coordinator.start(gradwire_contestant(options, scratch, socket));
  if (options.in_place) columns.push_back({"gradwire in-place", "gradwire", true, true});
  if (options.staged) columns.push_back({"gradwire staged", "gradwire", false, true});
  if (options.peers) {
    coordinator.start(mpi_contestant(options, socket));
    columns.push_back({"OpenMPI", "openmpi", true, false});
    coordinator.start(gloo_contestant(options, scratch, socket));
    columns.push_back({"Gloo (PyTorch)", "gloo", true, false});
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
