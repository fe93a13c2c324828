// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One host of a job over several.
#include <poll.h>

#include <optional>
#include <string>
#include <variant>

#include "gradwire/base/strings.h"
#include "launch/interruptions.h"
#include "launch/job.h"
#include "launch/launch_error.h"
#include "launch/node_attempts.h"
#include "launch/node_coordinator.h"
#include "launch/poll_timeout.h"
#include "launch/rank_process.h"
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

class NodeJob {
 public:
  NodeJob(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
          int front_fd)
      : options_(options),
        signals_(signals),
        front_fd_(front_fd),
        job_end_(job_deadline(options)),
        coordinator_(coordinator_options(options, secret)),
        attempts_(options, secret, signals, folder, front_fd, job_end_, coordinator_) {}

  int run() {
    for (;;) {
      const auto event = wait();
      if (!event) return exit_code_;
      if (const auto* plan = std::get_if<Plan>(&*event)) {
        meets_ = false;
        if (front_fd_ == -1) return exit_code_;
        if (exit_code_ != 0) {
          // The attempt began before the others had heard that this node leaves. No rank is started for it.
          coordinator_.ranks_ended({});
          patience_ = Deadline::after(options_.node.heartbeat_timeout);
          continue;
        }
        const NodeAttempts::Ending ending = attempts_.run(*plan);
        if (ending.is_abandoned) {
          on_front_death();
        } else if (ending.signal != 0) {
          interrupt(ending.signal);
        }
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
      ::poll(polled, 3, poll_timeout(until));
      if (polled[2].revents != 0) on_front_death();
      while (const auto signal = signals_.next_that_ends()) interrupt(*signal);
    }
  }

  // Who has interrupted the job does not wait for a reader.
  void say_last(const std::string& sentence) {
    if (exit_code_ == 0) {
      say_at_the_end(sentence, signals_, front_fd_);
    } else {
      say_unless_it_waits(sentence);
    }
  }

  void interrupt(int signal) {
    const bool is_repeated = interruptions_.take(signal, Deadline::Clock::now()) == Interruptions::Kind::repeated;
    if (exit_code_ != 0) {
      if (!is_repeated) patience_ = Deadline::after(Milliseconds::zero());
      return;
    }
    leave(128 + signal, concat("node ", options_.node.node, " was interrupted by ", name_of_signal(signal)));
  }

  void on_timeout() {
    const std::string where = concat("--timeout passed on node ", options_.node.node);
    say_unless_it_waits(concat(where, ", which waited for the other nodes"));
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

  const Options& options_;
  SignalQueue& signals_;
  int front_fd_;  // -1 once the front has died
  const Deadline job_end_;
  bool meets_ = true;  // this node waits for the others, to begin an attempt
  int exit_code_ = 0;  // not 0: this node has said that it leaves
  Deadline patience_ = Deadline::never();
  Interruptions interruptions_;
  NodeCoordinator coordinator_;
  NodeAttempts attempts_;
};

}  // namespace

int run_node(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
             int front_fd) {
  return NodeJob(options, secret, signals, folder, front_fd).run();
}

}  // namespace gradwire::launch
