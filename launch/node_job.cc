// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One host of a job over several.
#include <poll.h>

#include <optional>
#include <string>
#include <variant>

#include "gradwire/base/strings.h"
#include "launch/job.h"
#include "launch/node_attempts.h"
#include "launch/node_coordinator.h"
#include "launch/node_departure.h"
#include "launch/poll_timeout.h"
#include "launch/say.h"

namespace gradwire::launch {
namespace {

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

// The events of the job on this host, one after the other, until the last.
class NodeJob {
 public:
  NodeJob(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
          int front_fd)
      : NodeJob(options, secret, signals, folder, front_fd, job_deadline(options)) {}

  int run() {
    for (;;) {
      const auto event = wait();
      if (!event) return departure_.exit_code();
      if (const auto* plan = std::get_if<Plan>(&*event)) {
        departure_.attempt_begins(Deadline::Clock::now());
        if (front_fd_ == -1) return departure_.exit_code();
        attempt(*plan);
      } else if (const auto* notice = std::get_if<Notice>(&*event)) {
        say_unless_it_waits(notice->what);
      } else if (const auto* failure = std::get_if<Failure>(&*event)) {
        say_last(failure->what);
        return failure->exit_code;
      } else {
        const Verdict& verdict = std::get<Verdict>(*event);
        if (verdict.kind != Verdict::Kind::restart) {
          if (!verdict.what.empty()) say_last(verdict.what);
          return verdict.exit_code;
        }
        say_unless_it_waits(verdict.what);
        departure_.meets_again();
      }
    }
  }

 private:
  NodeJob(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
          int front_fd, Deadline job_end)
      : signals_(signals),
        front_fd_(front_fd),
        departure_(options.node.node, options.node.heartbeat_timeout, job_end),
        coordinator_(coordinator_options(options, secret)),
        attempts_(options, secret, signals, folder, front_fd, job_end, coordinator_) {}

  // The next event; nothing when the job is to end without one.
  std::optional<NodeEvent> wait() {
    for (;;) {
      if (auto event = coordinator_.next()) return event;
      const auto now = Deadline::Clock::now();
      if (departure_.is_over(now)) return std::nullopt;
      if (departure_.is_late(now)) {
        const NodeEnd end = departure_.on_timeout(now);
        say_unless_it_waits(concat(end.what, ", which waited for the other nodes"));
        coordinator_.leave(end);
        continue;
      }
      pollfd polled[3] = {{signals_.fd(), POLLIN, 0}, {coordinator_.event_fd(), POLLIN, 0}, {front_fd_, POLLIN, 0}};
      ::poll(polled, 3, poll_timeout(departure_.next()));
      if (polled[2].revents != 0) on_front_death();
      while (const auto signal = signals_.next_that_ends()) on_signal(*signal);
    }
  }

  void attempt(const Plan& plan) {
    // No rank is started for a node that leaves.
    if (departure_.is_leaving()) return coordinator_.ranks_ended({});
    const NodeAttempts::Ending ending = attempts_.run(plan);
    if (ending.is_abandoned) {
      on_front_death();
    } else if (ending.signal != 0) {
      on_signal(ending.signal);
    }
  }

  void on_signal(int signal) {
    if (const auto end = departure_.on_signal(signal, Deadline::Clock::now())) coordinator_.leave(*end);
  }

  void on_front_death() {
    front_fd_ = -1;
    departure_.on_front_death(Deadline::Clock::now());
  }

  // Who has interrupted the job does not wait for a reader.
  void say_last(const std::string& sentence) {
    if (departure_.is_leaving()) {
      say_unless_it_waits(sentence);
    } else {
      say_at_the_end(sentence, signals_, front_fd_);
    }
  }

  SignalQueue& signals_;
  int front_fd_;  // -1 once the front has died
  NodeDeparture departure_;
  NodeCoordinator coordinator_;
  NodeAttempts attempts_;
};

}  // namespace

int run_node(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
             int front_fd) {
  return NodeJob(options, secret, signals, folder, front_fd).run();
}

}  // namespace gradwire::launch
