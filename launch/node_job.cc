// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One host of a job over several.
#include <poll.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "launch/job.h"
#include "launch/launch_error.h"
#include "launch/node_coordinator.h"
#include "launch/report.h"

namespace gradwire::launch {
namespace {

// timeout(1) and others signal the launcher and its process group, so that one interruption arrives twice.
constexpr Milliseconds kRepeatTime{250};

NodeCoordinatorOptions coordinator_options(const Options& options, const std::string& secret) {
  const NodeOptions& node = options.node;
  return {.nodes = node.nodes,
          .node = node.node,
          .ranks = options.ranks,
          .host = node.host,
          .port = node.port,
          .job_id = node.job_id,
          .secret = secret,
          .version = GRADWIRE_VERSION,
          .max_restarts = options.max_restarts,
          .master_port = node.master_port,
          .watched = options.is_watched(),
          .rendezvous_timeout = node.rendezvous_timeout,
          .heartbeat_timeout = node.heartbeat_timeout};
}

NodeEnd end_of(const JobOutcome& outcome, const std::string& place) {
  using Kind = NodeEnd::Kind;
  if (outcome.interrupted_by != 0) {
    return {Kind::final, outcome.exit_code(),
            concat(place, " was interrupted by ", name_of_signal(outcome.interrupted_by))};
  }
  if (!outcome.late.empty()) return {Kind::final, kTimeoutExit, concat("--timeout passed on ", place)};
  if (outcome.stopped_first) return {Kind::stopped, outcome.exit_code(), ""};
  if (outcome.first_bad) {
    const ProcessEnd& end = *outcome.ends[*outcome.first_bad];
    return {end.by_signal ? Kind::killed : Kind::failed, end.exit_code(),
            concat("rank ", outcome.first_rank + *outcome.first_bad, " on ", place, " died of ", describe(end))};
  }
  if (outcome.exit_code() != 0)
    return {Kind::final, outcome.exit_code(), concat("ranks on ", place, " cannot be killed")};
  return {};
}

void say(const std::string& sentence) { std::fprintf(stderr, "gradwire-run: %s\n", sentence.c_str()); }

class NodeJob {
 public:
  NodeJob(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
          int front_fd)
      : options_(options),
        signals_(signals),
        front_fd_(front_fd),
        folder_(folder),
        secret_(secret),
        job_end_(job_deadline(options)),
        coordinator_(coordinator_options(options, secret)) {}

  int run() {
    for (;;) {
      const auto event = wait();
      if (!event) return exit_code_;
      if (const auto* plan = std::get_if<Plan>(&*event)) {
        meets_ = false;
        run_attempt(*plan);
      } else if (const auto* notice = std::get_if<Notice>(&*event)) {
        say(notice->what);
      } else if (const auto* failure = std::get_if<Failure>(&*event)) {
        say(failure->what);
        return failure->exit_code;
      } else {
        const Verdict& verdict = std::get<Verdict>(*event);
        if (!verdict.what.empty()) say(verdict.what);
        if (verdict.kind != Verdict::Kind::restart) return verdict.exit_code;
        meets_ = true;
      }
    }
  }

 private:
  // The next event; nothing when the job is to end without one.
  std::optional<NodeEvent> wait() {
    for (;;) {
      if (auto event = coordinator_.next()) return event;
      if (patience_.expired()) return std::nullopt;
      const bool has_limit = meets_ && exit_code_ == 0;
      if (has_limit && job_end_.expired()) {
        on_timeout();
        continue;
      }
      const Deadline until = has_limit ? patience_.earlier(job_end_) : patience_;
      pollfd polled[3] = {{signals_.fd(), POLLIN, 0}, {coordinator_.event_fd(), POLLIN, 0}, {front_fd_, POLLIN, 0}};
      ::poll(polled, 3, static_cast<int>(std::min<long long>(until.remaining().count(), INT_MAX)));
      if (polled[2].revents != 0) on_front_death();
      while (const auto signal = signals_.next_that_ends()) interrupt(*signal);
    }
  }

  void interrupt(int signal) {
    if (exit_code_ != 0) {
      if (repeat_guard_.expired()) patience_ = Deadline::after(Milliseconds::zero());
      return;
    }
    repeat_guard_ = Deadline::after(kRepeatTime);
    leave(128 + signal, concat("node ", options_.node.node, " was interrupted by ", name_of_signal(signal)));
  }

  void on_timeout() {
    const std::string where = concat("--timeout passed on node ", options_.node.node);
    say(concat(where, ", which waited for the other nodes"));
    leave(kTimeoutExit, where);
  }

  void on_front_death() {
    // To the others it is as if this host were gone: they notice, and may start again.
    front_fd_ = -1;
    exit_code_ = 128 + SIGKILL;
    patience_ = Deadline::after(Milliseconds::zero());
  }

  // Tells the others, and waits a while for what they say to it.
  void leave(int exit_code, const std::string& what) {
    exit_code_ = exit_code;
    patience_ = Deadline::after(options_.node.heartbeat_timeout);
    coordinator_.leave({NodeEnd::Kind::final, exit_code, what});
  }

  void run_attempt(const Plan& plan) {
    const int node = options_.node.node;
    const std::string place = concat("node ", node, " (", plan.nodes[node].host, ")");
    FlightWatch flight(options_, plan.first_rank(node), plan.world());
    JobVariables job = environment_of(plan);
    job.flight_recorders = flight.recorders();
    try {
      const bool watched = options_.is_watched() || options_.report_steps || plan.watched;
      if (watched) watch(plan, job);
      const JobView view{
          .names = {.first_rank = plan.first_rank(node), .world = plan.world(), .append = plan.attempt > 0},
          .flight = &flight,
          .live = watched ? &*live_ : nullptr,
          .alarm_fd = coordinator_.alarm_fd(),
          .job_end = job_end_};
      Supervisor supervisor(options_, signals_, front_fd_, view);
      const JobOutcome outcome = supervisor.run(rank_commands(options_, std::move(job)));
      if (supervisor.is_abandoned()) return on_front_death();
      coordinator_.ranks_ended(end_of(outcome, place));
      supervisor.finish_output(report(outcome, options_.timeout.value_or(Milliseconds::zero())));
      if (supervisor.is_abandoned()) return on_front_death();
      const int signal = supervisor.late_interruption();
      if (signal != 0 && outcome.exit_code() != 0) interrupt(signal);
    } catch (const LaunchError& error) {
      coordinator_.ranks_ended({NodeEnd::Kind::final, error.exit_code(), concat(place, ": ", error.what())});
    }
  }

  // Node 0 shows the ranks of all nodes, which tell node 0 how theirs get on. Any other shows its own. The page stays
  // from attempt to attempt.
  void watch(const Plan& plan, JobVariables& job) {
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

  JobVariables environment_of(const Plan& plan) {
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

  const Options& options_;
  SignalQueue& signals_;
  int front_fd_;  // -1 once the front has died
  RendezvousFolder& folder_;
  const std::string secret_;
  const Deadline job_end_;
  bool meets_ = true;  // this node waits for the others, to begin an attempt
  int exit_code_ = 0;  // not 0: this node has said that it leaves
  Deadline patience_ = Deadline::never();
  Deadline repeat_guard_ = Deadline::never();
  NodeCoordinator coordinator_;
  std::optional<LiveWatch> live_;  // from the first attempt on that is watched
};

}  // namespace

int run_node(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
             int front_fd) {
  return NodeJob(options, secret, signals, folder, front_fd).run();
}

}  // namespace gradwire::launch
