// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The command line of gradwire-run on one of several hosts.
#include <chrono>
#include <string>
#include <vector>

#include "gradwire/base/address.h"
#include "gradwire/base/strings.h"
#include "launch/options.h"

namespace gradwire::launch {
namespace {

// What makes the launcher on host `node` a part of the job.
std::vector<std::string> arguments_for_job(const Options& options, int node) {
  const std::string address = host_and_port(options.node.host, options.node.port);
  if (!options.elastic) {
    return {"--nnodes",       std::to_string(options.node.nodes),
            "--node-rank",    std::to_string(node),
            "--rendezvous",   address,
            "--max-restarts", std::to_string(options.max_restarts)};
  }
  const ElasticOptions& elastic = *options.elastic;
  std::vector<std::string> arguments = {"--deaths-per-minute", std::to_string(elastic.deaths_per_minute)};
  const auto add = [&](std::vector<std::string> more) { arguments.insert(arguments.end(), more.begin(), more.end()); };
  if (elastic.replace_stalled) add({"--replace-stalled"});
  if (node != 0) {
    add({"--join", address});
    return arguments;
  }
  add({"--elastic", concat(elastic.min, ":", elastic.max), "--rendezvous", address});
  if (!elastic.log.empty()) add({"--membership-log", elastic.log});
  if (elastic.slow) add({"--drop-slow", concat(elastic.slow->factor, ":", elastic.slow->steps)});
  return arguments;
}

}  // namespace

std::vector<std::string> arguments_for_host(const Options& options, int node) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::to_string(static_cast<double>(time.count()) / 1000);
  };
  const NodeOptions& job = options.node;
  std::vector<std::string> arguments = {"--ranks",
                                        std::to_string(options.ranks),
                                        "--rendezvous-timeout",
                                        seconds(job.rendezvous_timeout),
                                        "--heartbeat-timeout",
                                        seconds(job.heartbeat_timeout),
                                        "--grace",
                                        seconds(options.grace),
                                        "--secret-file",
                                        "-",
                                        "--end-with-stdin",
                                        "--color",
                                        options.color == ColorMode::always ? "always" : "never"};
  const auto add = [&](std::vector<std::string> more) { arguments.insert(arguments.end(), more.begin(), more.end()); };
  add(arguments_for_job(options, node));
  if (options.timeout) add({"--timeout", seconds(*options.timeout)});
  if (options.stall) add({"--stall", seconds(*options.stall)});
  if (!options.flight_folder.empty()) add({"--flight-dir", options.flight_folder});
  if (!options.record_folder.empty()) add({"--record", options.record_folder});
  if (options.is_watched() || options.report_steps) add({"--report-steps"});
  if (!job.job_id.empty()) add({"--job-id", job.job_id});
  if (job.master_port != 0) add({"--master-port", std::to_string(job.master_port)});
  if (!options.log_folder.empty()) add({"--log-dir", options.log_folder});
  if (options.pin) add({"--pin"});
  if (!options.prefix) add({"--no-prefix"});
  for (const auto& [name, value] : options.extra_environment) add({"--env", concat(name, "=", value)});
  add({"--"});
  add(options.command);
  return arguments;
}

}  // namespace gradwire::launch
