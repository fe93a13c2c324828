// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/command_line.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

namespace gradwire::launch {
namespace {

constexpr const char* kDescription =
    "Starts N ranks of a program on this host, or on each of several, watches them and stops them.\n"
    "\n"
    "  gradwire-run -n 4 ./train --steps 100\n"
    "  gradwire-run --hosts a,b -n 4 ./train --steps 100\n"
    "  gradwire-run --nnodes 2 --node-rank 0 --rendezvous a:29400 -n 4 ./train --steps 100\n"
    "\n"
    "Each rank finds its number in the environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR, MASTER_PORT, GRADWIRE_RENDEZVOUS and more (docs/launcher.md). When one rank fails, the\n"
    "others get SIGTERM, then --grace seconds, then SIGKILL, and gradwire-run says which rank died first and of what.";

constexpr const char* kFooter =
    "Exit code: 0 when every rank exited with 0; otherwise that of the rank that died first (128 + signal if a signal\n"
    "killed it); 128 + signal when the job was interrupted; 124 after --timeout; 2 for a bad command line; 126 or 127\n"
    "when the program cannot be run or found; 122 when the hosts did not connect; 123 when a host vanished.";

// Returns what adds an option with a value to `group`; null: to the options of no group.
auto adder_to(CLI::App& app, const char* group = nullptr) {
  return [&app, group](const char* name, std::string& value, const char* text, const char* type) {
    CLI::Option* const option = app.add_option(name, value, text)->type_name(type);
    if (group != nullptr) option->group(group);
  };
}

void declare_hosts(CLI::App& app, RawOptions& raw) {
  const char* group = "Several hosts";
  const auto add = adder_to(app, group);
  add("--hosts", raw.hosts, "Start gradwire-run on each of these hosts", "A,B,...");
  add("--ssh", raw.shell, "How to run a command on a host (default \"ssh -o BatchMode=yes {host} {command}\")",
      "COMMAND");
  add("--nnodes", raw.nodes, "How many hosts take part, each with a gradwire-run of its own", "N");
  add("--node-rank", raw.node, "The number of this host, from 0", "K");
  add("--rendezvous", raw.rendezvous, "Where node 0 listens and the others find it", "HOST:PORT");
  add("--job-id", raw.job_id, "The job's name; a launcher with another name cannot join", "NAME");
  add("--secret-file", raw.secret_file,
      "Holds the secret that the hosts share (default: GRADWIRE_SECRET_FILE, else GRADWIRE_SECRET)", "FILE");
  add("--master-port", raw.master_port, "MASTER_PORT of the ranks (default: one that is free on node 0)", "PORT");
  add("--rendezvous-timeout", raw.rendezvous_timeout, "How long hosts wait for each other (default 300)", "SECONDS");
  add("--heartbeat-timeout", raw.heartbeat_timeout, "A host that is silent so long has vanished (default 10)",
      "SECONDS");
  app.add_flag("--end-with-stdin", raw.end_with_stdin, "When stdin ends, stop the job as SIGTERM would")->group(group);
  app.add_flag("--report-steps", raw.report_steps, "Say on stderr how the ranks get on, in lines for a program")
      ->group(group);
}

void declare_elastic(CLI::App& app, RawOptions& raw) {
  const char* group = "Ranks that come and go (docs/elastic.md)";
  const auto add = adder_to(app, group);
  add("--elastic", raw.elastic, "The job goes on with MIN to MAX ranks; a rank that dies is replaced", "MIN:MAX");
  add("--join", raw.join, "Bring N ranks of this host into the elastic job whose --rendezvous this is", "HOST:PORT");
  add("--serve", raw.serve,
      "Hold an elastic job for hosts that --join it, without ranks; started again, it goes on from its journal",
      "HOST:PORT");
  add("--deaths-per-minute", raw.deaths_per_minute,
      "End the job when more than N ranks die within a minute, or without that it comes further (default 10)", "N");
  add("--membership-log", raw.membership_log, "Write who took part, and when, to this new file", "FILE");
  add("--drop-slow", raw.drop_slow,
      "A rank leaves when its own part of so many steps in a row takes FACTOR times as long as the others'",
      "FACTOR:STEPS");
  app.add_flag("--replace-stalled", raw.replace_stalled,
               "Kill a rank of this host that is stopped, blocked or computes without end while others wait for it "
               "longer than --stall; a new process takes its place")
      ->group(group);
  add("--replay", raw.replay, "Repeat the changes of ranks that this journal holds; no rank fails", "FILE");
}

// The program and its arguments are no options of ours, so CLI11 does not know of them.
class Help final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    usage.erase(usage.find_last_not_of('\n') + 1);
    return usage + " PROGRAM [ARGUMENTS]\n";
  }
};

}  // namespace

void declare(CLI::App& app, RawOptions& raw) {
  const auto add = adder_to(app);
  app.description(kDescription);
  app.prefix_command();
  app.footer(kFooter);
  app.formatter(std::make_shared<Help>());
  app.set_version_flag("--version", std::string("gradwire-run " GRADWIRE_VERSION));
  app.add_flag("--info", raw.info, "Say version, build options, the backends that can be used here, and kernels");
  add("-n,--ranks,--nproc-per-node", raw.ranks, "How many ranks to start on each host, 1 to 64 (required)", "N");
  app.add_flag("--pin", raw.pin, "Pin each rank to its share of the cores");
  app.add_option("--env", raw.environment, "Set a variable for every rank; may be given again")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  add("--log-dir", raw.log_folder, "Write DIR/rank-K.out and DIR/rank-K.err in place of the prefixed output", "DIR");
  app.add_flag("--no-prefix", raw.no_prefix, "Pass output through as it comes; lines of two ranks may mix");
  add("--color", raw.color, "Colour the prefixes: auto (on a terminal; the default), always or never", "WHEN");
  add("--stdin", raw.stdin_mode, "Who reads the standard input: rank0 (the default) or none", "WHO");
  add("--timeout", raw.timeout, "End the job after so many seconds", "SECONDS");
  add("--grace", raw.grace, "Seconds between SIGTERM and SIGKILL when the job is stopped (default 1)", "SECONDS");
  add("--stall", raw.stall,
      "When a rank waits and no call begins or ends for this time, say which rank is the cause; the job "
      "goes on (default: GRADWIRE_STALL_SECONDS)",
      "SECONDS");
  add("--flight-dir", raw.flight_folder, "Write each rank's last calls to DIR when the job fails or stalls", "DIR");
  add("--record", raw.record_folder, "Record the steps of each rank in DIR, for gradwire.report", "DIR");
  app.add_flag("--watch", raw.watch, "Show how the ranks get on: steps, waits, bytes, who is slow");
  add("--watch-port", raw.watch_port,
      "Show the same as a page on this port of 127.0.0.1, and at /metrics for Prometheus; 0: a free port", "PORT");
  add("--max-restarts", raw.max_restarts, "Start all ranks again, up to N times, when one fails (default 0)", "N");
  declare_elastic(app, raw);
  declare_hosts(app, raw);
}

}  // namespace gradwire::launch
