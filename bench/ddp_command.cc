// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp_command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.h"
#include "bench/coordinator.h"
#include "bench/statistics.h"
#include "gradwire/process_group/backend_names.h"

namespace gradwire::bench {
namespace {

constexpr const char* kGradwire = "gradwire";
constexpr const char* kPyTorch = "pytorch";

// One way to train against the same step without DDP.
struct Case {
  std::string contestant;
  std::string variant;
  std::string alone;  // the variant without DDP
  std::string title;
};

// With and without views; with gradients that stay and that are given up between steps. gradwire's also with fused
// steps, and with ranks that only wait for each other: less than that no exchange of averages can cost.
void add_cases(std::vector<Case>& cases, const std::string& contestant, const std::string& title, bool is_gradwire) {
  for (const bool none : {false, true}) {
    const std::string end = none ? "/none" : "";
    const std::string words = none ? ", set_to_none" : "";
    if (is_gradwire) cases.push_back({contestant, "meet" + end, "alone" + end, title + ", a barrier alone" + words});
    cases.push_back({contestant, "view" + end, "alone" + end, title + ", gradient_as_bucket_view" + words});
    cases.push_back({contestant, "copy" + end, "alone" + end, title + words});
    if (is_gradwire) cases.push_back({contestant, "fused" + end, "alone" + end, title + ", fused step" + words});
  }
}

// A step with DDP that is recorded, against the same step without the recorder.
std::vector<Case> recorder_cases(const std::string& title) {
  return {{kGradwire, "view/recorded", "view", title + ", gradient_as_bucket_view"},
          {kGradwire, "copy/recorded", "copy", title},
          {kGradwire, "view/none/recorded", "view/none", title + ", gradient_as_bucket_view, set_to_none"}};
}

struct Result {
  double alone_ms = 0;
  double ddp_ms = 0;
  Ratio ratio;
};

// The contestant whose ranks measure `variant`.
std::string contestant_of(const DdpCommandOptions& options, const Case& which, std::string variant) {
  if (!options.apart) return which.contestant;
  std::replace(variant.begin(), variant.end(), '/', '-');
  return which.contestant + ":" + variant;
}

void start_contestants(Coordinator& coordinator, const DdpCommandOptions& options, const std::vector<Case>& cases,
                       const ScratchFolder& scratch, const std::string& socket) {
  std::set<std::string> started;
  for (const Case& which : cases) {
    for (const std::string& variant : {which.alone, which.variant}) {
      const std::string name = contestant_of(options, which, variant);
      if (!started.insert(name).second) continue;
      if (which.contestant == kPyTorch) {
        coordinator.start(
            pytorch_contestant(name, options.python, "ddp_worker.py", options.world, scratch, socket,
                               {std::to_string(options.batch), options.pin ? "pin" : "free", options.optimizer, name}));
      } else {
        coordinator.start(
            gradwire_contestant({options.backend, options.world, options.pin, name},
                                {"training-worker", "--contestant", name, "--batch", std::to_string(options.batch),
                                 "--lanes", std::to_string(options.lanes), "--bucket-cap-mb",
                                 std::to_string(options.bucket_cap_mb), "--optimizer", options.optimizer},
                                scratch, socket));
      }
    }
  }
}

Result measure_case(Coordinator& coordinator, const DdpCommandOptions& options, const Case& which) {
  std::vector<double> alone;
  std::vector<double> ddp;
  const auto block = [&](const std::string& variant) {
    // Two steps first: the buckets are rebuilt before the second.
    const std::string contestant = contestant_of(options, which, variant);
    return mean_of(coordinator.measure(contestant, {0, options.steps, 2, variant, false}).samples);
  };
  for (int round = 0; round < options.rounds; ++round) {
    const bool alone_first = round % 2 == 0;
    if (alone_first) alone.push_back(block(which.alone));
    ddp.push_back(block(which.variant));
    if (!alone_first) alone.push_back(block(which.alone));
  }
  return {median_of(alone) / 1e3, median_of(ddp) / 1e3, paired_ratio(ddp, alone)};
}

void print_head(const DdpCommandOptions& options) {
  std::printf(
      "ddp: %d ranks, one thread each%s%s, 6307850 parameters, batch %d a rank; a step is forward, backward and %s\n",
      options.world, options.pin ? ", pinned" : "", options.apart ? ", each way in processes of its own" : "",
      options.batch, options.optimizer.c_str());
  std::printf("%-52s %12s %12s   %s\n", "", options.recorder ? "not recorded" : "alone",
              options.recorder ? "recorded" : "with DDP",
              options.recorder ? "the recorder costs [95% interval], pairs of blocks"
                               : "DDP costs [95% interval], pairs of blocks");
}

void print_row(const DdpCommandOptions& options, const Case& which, const Result& result) {
  const int digits = options.recorder ? 2 : 1;
  std::printf("%-52s %9.2f ms %9.2f ms   %+.*f%% [%+.*f%%, %+.*f%%], %d\n", which.title.c_str(), result.alone_ms,
              result.ddp_ms, digits, (result.ratio.value - 1) * 100, digits, (result.ratio.low - 1) * 100, digits,
              (result.ratio.high - 1) * 100, options.rounds);
}

void print_json(const DdpCommandOptions& options, const Case& which, const Result& result) {
  const nlohmann::json line{{"benchmark", "ddp"},
                            {"contestant", which.title},
                            {"world", options.world},
                            {"optimizer", options.optimizer},
                            {"apart", options.apart},
                            {"alone_ms", result.alone_ms},
                            {"ddp_ms", result.ddp_ms},
                            {"ratio", result.ratio.value},
                            {"ratio_low", result.ratio.low},
                            {"ratio_high", result.ratio.high},
                            {"pairs", options.rounds}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace

void run_ddp(const DdpCommandOptions& options) {
  require_world(options.world);
  require_backend(options.backend, backend_names());
  const ScratchFolder scratch;
  const std::string socket = scratch / "coordinator";
  Coordinator coordinator(socket);
  std::vector<Case> cases;
  const std::string title = "gradwire " + options.backend;
  if (options.recorder) {
    if (options.json || options.peers || options.apart)
      throw std::runtime_error(
          "--recorder measures gradwire alone, in one program, and prints text; leave --json, --peers and --apart out");
    cases = recorder_cases(title);
    // Into files, as users record.
    ::setenv("GRADWIRE_RECORD", (scratch / "records").c_str(), 1);
  } else {
    add_cases(cases, kGradwire, title, /*is_gradwire=*/true);
  }
  if (options.peers) add_cases(cases, kPyTorch, "PyTorch Gloo", /*is_gradwire=*/false);
  start_contestants(coordinator, options, cases, scratch, socket);
  if (!options.json) print_head(options);
  for (const Case& which : cases) {
    const Result result = measure_case(coordinator, options, which);
    options.json ? print_json(options, which, result) : print_row(options, which, result);
    std::fflush(stdout);
  }
}

}  // namespace gradwire::bench
