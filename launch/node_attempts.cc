// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_attempts.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "launch/job.h"
#include "launch/launch_error.h"
#include "launch/supervisor.h"

namespace gradwire::launch {
namespace {

NodeEnd end_of(const JobOutcome& outcome, const std::string& place) {
  using Kind = NodeEnd::Kind;
  if (outcome.interrupted_by != 0) {
    return {Kind::final, outcome.exit_code(),
            concat(place, " was interrupted by ", name_of_signal(outcome.interrupted_by))};
  }
  if (!outcome.late.empty()) return {Kind::final, kTimeoutExit, concat("--timeout passed on ", place)};
  // SIGKILL comes from outside, whatever the rank was told before.
  const bool was_sigkill = outcome.first_bad && outcome.ends[*outcome.first_bad]->by_signal &&
                           outcome.ends[*outcome.first_bad]->code == SIGKILL;
  const bool followed = outcome.first_bad_calls == JobOutcome::Calls::of_other_rank && !was_sigkill;
  // The rank whose failure the others noticed may come to its end after one of them. A rank that has not recorded its
  // calls, or whose calls have failed, may be one of the others.
  const bool failed_by_itself =
      outcome.first_bad && outcome.first_bad_calls == JobOutcome::Calls::good &&
      std::find(outcome.asked.begin(), outcome.asked.end(), *outcome.first_bad) == outcome.asked.end();
  if (outcome.stopped_first && !failed_by_itself) return {Kind::stopped, outcome.exit_code(), ""};
  if (outcome.first_bad) {
    const ProcessEnd& end = *outcome.ends[*outcome.first_bad];
    // After the alarm of another host a crash may be a rank's way to end.
    const bool was_killed = end.by_signal && end.code != SIGABRT && (was_sigkill || !outcome.stopped_first);
    return {followed     ? Kind::followed
            : was_killed ? Kind::killed
                         : Kind::failed,
            end.exit_code(),
            concat("rank ", outcome.first_rank + *outcome.first_bad, " on ", place, " died of ", describe(end)),
            std::chrono::duration_cast<Milliseconds>(outcome.first_bad_at.time_since_epoch()).count()};
  }
  if (outcome.exit_code() != 0)
    return {Kind::final, outcome.exit_code(), concat("ranks on ", place, " cannot be killed")};
  return {};
}

}  // namespace

NodeAttempts::NodeAttempts(const Options& options, const std::string& secret, SignalQueue& signals,
                           RendezvousFolder& folder, int front_fd, Deadline job_end, NodeCoordinator& coordinator)
    : options_(options),
      secret_(secret),
      signals_(signals),
      folder_(folder),
      front_fd_(front_fd),
      job_end_(job_end),
      coordinator_(coordinator) {}

NodeAttempts::Ending NodeAttempts::run(const Plan& plan) {
  const int node = options_.node.node;
  const std::string place = concat("node ", node, " (", plan.nodes[node].host, ")");
  try {
    JobVariables job = variables_of(plan);
    FlightWatch flight(options_, job);
    job.flight_recorders = flight.recorders();
    const bool watched = options_.is_watched() || options_.report_steps || plan.watched;
    if (watched) watch(plan, job);
    const JobView view{
        .names = {.first_rank = plan.first_rank(node), .world = plan.world(), .append = plan.attempt > 0},
        .flight = &flight,
        .live = watched ? &*live_ : nullptr,
        .alarm_fd = coordinator_.alarm_fd(),
        .on_failure = [this] { coordinator_.rank_failed(); },
        .on_interruption = [this] { coordinator_.interrupted(); },
        .job_end = job_end_};
    Supervisor supervisor(options_, signals_, front_fd_, view);
    const JobOutcome outcome = supervisor.run(rank_commands(options_, std::move(job)));
    if (supervisor.is_abandoned()) return {.is_abandoned = true};
    coordinator_.ranks_ended(end_of(outcome, place));
    supervisor.finish_output(report_of(options_, outcome));
    return {.is_abandoned = supervisor.is_abandoned(), .signal = supervisor.late_interruption()};
  } catch (const LaunchError& error) {
    coordinator_.ranks_ended({NodeEnd::Kind::final, error.exit_code(), concat(place, ": ", error.what())});
    return {};
  }
}

// Node 0 shows the ranks of all nodes, which tell node 0 how theirs get on. Any other shows its own. The page stays
// from attempt to attempt.
void NodeAttempts::watch(const Plan& plan, JobVariables& job) {
  const int node = options_.node.node;
  const bool all = plan.watched && node == 0;
  std::unique_ptr<LiveSource> source = record_files(options_, folder_, job);
  if (!live_) {
    if (all) {
      source = std::make_unique<NodeReports>(std::move(source), options_.ranks,
                                             [this] { return coordinator_.told_steps(); });
    }
    live_.emplace(options_, std::move(source));
    // Node 0 asks for them where it is watched.
    if (node != 0) live_->tell([this](std::string lines) { coordinator_.tell_steps(std::move(lines)); });
  }
  live_->follow(plan.first_rank(node), all ? plan.world() : options_.ranks);
}

JobVariables NodeAttempts::variables_of(const Plan& plan) {
  const NodeOptions& node = options_.node;
  JobVariables job;
  job.first_rank = plan.first_rank(node.node);
  job.world = plan.world();
  job.node = node.node;
  job.nodes = node.nodes;
  job.attempt = plan.attempt;
  job.rendezvous =
      concat(membership::job_place(node.host, node.port), "?hosted=1&prefix=ranks/", plan.job_id, "/", plan.attempt);
  job.job_id = plan.job_id;
  job.master_address = node.host;
  job.master_port = plan.master_port;
  // Anew for each attempt: the folder may have been removed since the last.
  if (!secret_.empty()) job.secret_file = folder_.keep_secret(secret_);
  return job;
}

}  // namespace gradwire::launch
