// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/step_recorder.h"
#include "gradwire/store/secret.h"
#include "launch/cpu_share.h"
#include "launch/launch_error.h"
#include "launch/report.h"
#include "launch/writable_folder.h"

namespace gradwire::launch {
namespace {

// The folder that the user names for the records, in one way or another; empty: none.
std::string named_record_folder(const Options& options) {
  if (!options.record_folder.empty()) return options.record_folder;
  for (auto entry = options.extra_environment.rbegin(); entry != options.extra_environment.rend(); ++entry) {
    if (entry->first == "GRADWIRE_RECORD") return entry->second;
  }
  return environment("GRADWIRE_RECORD").value_or("");
}

}  // namespace

std::string read_secret_line(int fd) {
  std::string line;
  for (char byte = 0; ::read(fd, &byte, 1) == 1 && byte != '\n';) {
    line += byte;
    if (line.size() > kMaxSecretBytes) break;
  }
  if (line.empty() || line.size() > kMaxSecretBytes) {
    throw LaunchError(kUsageExit, concat("--secret-file -: the first line of stdin must be the secret, of 1 to ",
                                         kMaxSecretBytes, " bytes"));
  }
  return line;
}

std::vector<RankCommand> rank_commands(const Options& options, JobVariables job) {
  job.ranks = options.ranks;
  job.threads = threads_per_rank(allowed_cpus(), options.ranks);
  job.terminal = options.prefix && options.log_folder.empty() && ::isatty(STDOUT_FILENO) == 1;
  if (job.attempt == 0) {
    if (!options.record_folder.empty()) require_writable_folder("--record", options.record_folder);
    if (!options.flight_folder.empty()) require_writable_folder("--flight-dir", options.flight_folder);
  }
  if (job.record_folder.empty()) job.record_folder = options.record_folder;
  if (!job.record_folder.empty() && job.attempt == 0) {
    // The records of an earlier job would be taken for those of ranks that end before they write any.
    for (int rank = 0; rank < options.ranks; ++rank)
      observe::remove_earlier_record(job.record_folder, job.first_rank + rank);
  }
  job.extra = options.extra_environment;
  std::vector<RankCommand> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const bool reads = job.first_rank + rank == 0 && options.stdin_mode == StdinMode::rank0;
    ranks.push_back({options.command, rank_environment(job, rank, environ), reads ? STDIN_FILENO : -1});
  }
  return ranks;
}

std::unique_ptr<LiveSource> record_files(const Options& options, const RendezvousFolder& folder, JobVariables& job) {
  job.record_folder = named_record_folder(options);
  if (job.record_folder.empty()) job.record_folder = folder.path() + "/records";
  return std::make_unique<RecordFiles>(job.record_folder);
}

std::optional<LiveWatch> live_watch(const Options& options, const RendezvousFolder& folder, JobVariables& job) {
  if (!options.is_watched() && !options.report_steps) return std::nullopt;
  return std::optional<LiveWatch>(std::in_place, options, record_files(options, folder, job));
}

std::string report_of(const Options& options, const JobOutcome& outcome) {
  return report(outcome, options.timeout.value_or(std::chrono::milliseconds::zero()));
}

Deadline job_deadline(const Options& options) {
  return options.timeout ? Deadline::after(*options.timeout) : Deadline::never();
}

int run_alone(const Options& options, SignalQueue& signals, RendezvousFolder& folder, int front_fd) {
  JobVariables job;
  job.world = options.ranks;
  job.job_id = job_id_or_random(options.node.job_id);
  job.run_id = random_job_id();
  JobView view{.names = {.world = options.ranks}, .job_end = job_deadline(options)};
  auto live = live_watch(options, folder, job);
  if (live) view.live = &*live;
  for (;; ++job.attempt) {
    job.rendezvous = folder.store_file(job.attempt);
    job.master_port = master_port_or_free(options.node.master_port);
    view.names.append = job.attempt > 0;
    FlightWatch flight(options, job);
    job.flight_recorders = flight.recorders();
    view.flight = &flight;
    if (live) live->follow(0, options.ranks);
    Supervisor supervisor(options, signals, front_fd, view);
    const JobOutcome outcome = supervisor.run(rank_commands(options, job));
    const bool failed = outcome.first_bad && outcome.interrupted_by == 0 && outcome.late.empty() &&
                        outcome.unkillable.empty() && !supervisor.is_abandoned();
    const bool again = failed && job.attempt < options.max_restarts;
    std::string text = report_of(options, outcome);
    if (again) {
      text +=
          concat("gradwire-run: all ranks start again (restart ", job.attempt + 1, " of ", options.max_restarts, ")\n");
    }
    supervisor.finish_output(text);
    if (!again || supervisor.is_abandoned()) return outcome.exit_code();
    if (const int signal = supervisor.late_interruption(); signal != 0) return 128 + signal;
  }
}

}  // namespace gradwire::launch
