// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs: on one host, on the host that serves the job's store, and on a host that joins.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/journal.h"
#include "launch/elastic_coordinator.h"
#include "launch/elastic_server.h"
#include "launch/job.h"
#include "launch/joined_host.h"
#include "launch/launch_error.h"
#include "launch/present_epoch.h"
#include "launch/say.h"

namespace gradwire::launch {
namespace {

// A machine with too much to do may keep the coordinator from its processor for seconds.
constexpr std::chrono::milliseconds kShortestCoordinatorLimit{5000};

// Throws LaunchError unless the journal can be played with the ranks that are started.
void require_replayable(const Options& options) {
  const std::string& file = options.elastic->replay;
  std::size_t most = 0;
  try {
    for (const membership::PlayedEpoch& epoch : membership::read_membership_log(file))
      most = std::max(most, epoch.members.size());
  } catch (const StoreError& problem) {
    throw LaunchError(kUsageExit, concat("--replay: ", problem.what()));
  }
  if (most == 0) throw LaunchError(kUsageExit, concat("--replay: no step began in the job of '", file, "'"));
  if (most <= static_cast<std::size_t>(options.ranks)) return;
  throw LaunchError(kUsageExit, concat("--replay: the job of '", file, "' had up to ", most,
                                       " ranks at once; start as many with -n"));
}

// The program that coordinates the job, with its store at job.elastic.
RankCommand coordinator_of(const Options& options, const std::string& journal, const JobVariables& job) {
  if (!UniqueFd(::open(journal.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600))) {
    throw_errno(concat("--membership-log: cannot write '", journal, "'"));
  } else if (membership::has_begun(journal)) {
    throw LaunchError(kUsageExit, concat("--membership-log: the file '", journal,
                                         "' exists; each job writes a new one, so give another name or remove it"));
  }
  if (!options.elastic->replay.empty()) require_replayable(options);
  RankCommand coordinator{
      coordinator_command(*options.elastic, options.ranks, job.elastic, journal, options.node.heartbeat_timeout),
      inherited_environment(), -1};
  if (!job.secret_file.empty()) {
    // Where a name comes twice, the first entry counts.
    const std::string name = "GRADWIRE_SECRET_FILE=";
    std::erase_if(coordinator.environment, [&](const std::string& entry) { return entry.starts_with(name); });
    coordinator.environment.push_back(name + job.secret_file);
  }
  return coordinator;
}

// The ranks of all launchers have numbers of their own, so that their files may be in one folder.
JobVariables environment_of(const Options& options, int first_rank, const std::string& secret,
                            RendezvousFolder& folder) {
  JobVariables job;
  job.first_rank = first_rank;
  job.world = first_rank + options.ranks;
  job.job_id = job_id_or_random(options.node.job_id);
  job.run_id = random_job_id();
  job.rendezvous = folder.store_file(0);
  job.master_port = master_port_or_free(options.node.master_port);
  if (!secret.empty()) job.secret_file = folder.keep_secret(secret);
  return job;
}

// The members of an epoch of a job whose coordinator runs on this host.
std::optional<EpochMembers> epoch_of_journal(const std::string& journal, std::int64_t number) {
  try {
    const auto epoch = membership::epoch_in_journal(journal, number);
    return epoch ? std::optional(members_here(*epoch, "")) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // nobody is named, and nobody killed
  }
}

// How the job of a journal goes. Reads the file when it has another size than before: who serves other hosts asks again
// and again. Copies do not share what was read.
class CourseOfJournal final {
 public:
  explicit CourseOfJournal(std::string journal) : journal_(std::move(journal)) {}
  membership::JobCourse operator()() {
    std::error_code absent;
    const std::uintmax_t bytes = std::filesystem::file_size(journal_, absent);
    if (absent || std::exchange(bytes_, bytes) == bytes) return course_;
    try {
      course_ = membership::course_in_journal(journal_);
    } catch (const Error&) {
      bytes_ = 0;  // the coordinator has not begun
    }
    return course_;
  }

 private:
  const std::string journal_;
  std::uintmax_t bytes_ = 0;
  membership::JobCourse course_;
};

// Starts this host's ranks, and returns how they ended. `finish` returns what to tell then.
template <class Finish>
int supervise(const Options& options, SignalQueue& signals, RendezvousFolder& folder, int front_fd, JobVariables job,
              JobView view, EpochLookup epochs, Finish finish) {
  FlightWatch flight(options, job, std::move(epochs));
  job.flight_recorders = flight.recorders();
  view.flight = &flight;
  view.names = {.first_rank = job.first_rank, .world = job.world};
  auto live = live_watch(options, folder, job);
  if (live) {
    view.live = &*live;
    live->follow(job.first_rank, options.ranks);
  }
  Supervisor supervisor(options, signals, front_fd, view);
  const JobOutcome outcome = supervisor.run(rank_commands(options, std::move(job)));
  const auto [exit_code, text] = finish(outcome);
  supervisor.finish_output(text);
  return exit_code;
}

std::string last_line(const std::string& report) {
  const std::string line = report.substr(0, report.find('\n'));
  const std::string name = "gradwire-run: ";
  return line.starts_with(name) ? line.substr(name.size()) : line;
}

// What to say of a host that SIGTERM made leave; empty where it ended in another way.
std::string sentence_of_leaving(const JobOutcome& outcome) {
  if (outcome.interrupted_by != SIGTERM) return "";
  std::vector<int> died;
  for (std::size_t rank = 0; rank < outcome.ends.size(); ++rank) {
    const auto& end = outcome.ends[rank];
    if (!end || (!end->good() && !(end->by_signal && end->code == SIGTERM))) return "";
    if (!end->good()) died.push_back(outcome.first_rank + static_cast<int>(rank));
  }
  if (died.empty()) return "this host has left the job in good order";
  // A member that leaves handles the signal.
  return concat("this host has left the job; SIGTERM ended ", name_ranks(died),
                " at once, before the program ran as a member, or because it does not leave on SIGTERM "
                "(ElasticOptions::leave_on_sigterm)");
}

}  // namespace

int run_elastic(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
                int front_fd) {
  JobVariables job = environment_of(options, /*first_rank=*/0, secret, folder);
  JobView view{.names = {}, .job_end = job_deadline(options)};
  std::unique_ptr<ElasticServer> server;
  ElasticView elastic;
  if (options.node.host.empty()) {
    job.elastic = folder.store_file(0) + "-elastic";
  } else {
    server = std::make_unique<ElasticServer>(options.node, secret, /*next_rank=*/options.ranks);
    job.elastic = server->place();
    job.job_id = server->job_id();
    job.run_id = server->run_id();
    elastic.has_hosts = [&] { return server->has_hosts(); };
    say_unless_it_waits(concat("other hosts join with: ", join_command(server->address(), secret)));
  }
  try {
    elastic.journal = options.elastic->log.empty() ? folder.store_file(0) + "-memberships" : options.elastic->log;
    elastic.coordinator = coordinator_of(options, elastic.journal, job);
    elastic.coordinator_limit = std::max(options.node.heartbeat_timeout, kShortestCoordinatorLimit);
    elastic.deaths_per_minute = options.elastic->deaths_per_minute;
    const std::string journal = elastic.journal;
    elastic.course = CourseOfJournal(journal);
    view.elastic = std::move(elastic);
    const auto epochs = [&](std::int64_t number) { return epoch_of_journal(journal, number); };
    const auto finish = [&](const JobOutcome& outcome) {
      std::string text = report_of(options, outcome);
      int code = outcome.exit_code();
      if (code == 0 && CourseOfJournal(journal)().has_lost_state()) {
        code = kLostStateExit;
        text = concat("gradwire-run: the job has failed: ", membership::kStateIsLost, "\n");
      }
      const std::string without_words =
          code == 0 ? "its last step was counted" : "it failed; the launcher that began it says why";
      if (server != nullptr) server->end(text.empty() ? without_words : last_line(text));
      return std::pair(code, text);
    };
    const int code = supervise(options, signals, folder, front_fd, std::move(job), view, epochs, finish);
    if (server != nullptr) server->wait_for_hosts(signals);
    return code;
  } catch (const Error& error) {
    // The other hosts hear why, and do not have to wait until the silence is long enough.
    if (server != nullptr) {
      server->end(error.what());
      server->wait_for_hosts(signals);
    }
    throw;
  }
}

int run_joined(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
               int front_fd) {
  const Deadline job_end = job_deadline(options);
  NodeOptions node = options.node;
  node.rendezvous_timeout = std::min(node.rendezvous_timeout, job_end.remaining());
  JoinedHost host(node, secret, options.ranks, signals);
  JobVariables job = environment_of(options, host.first_rank(), secret, folder);
  job.elastic = host.place();
  job.job_id = host.job_id();
  job.run_id = host.run_id();
  job.elastic_host = host.name();
  JobView view{.names = {}, .alarm_fd = host.alarm_fd(), .job_end = job_end};
  view.elastic.emplace();
  view.elastic->deaths_per_minute = options.elastic->deaths_per_minute;
  view.elastic->course = [&] { return host.course(); };
  view.elastic->answers = [&] { return host.answers(); };
  view.elastic->host = host.name();
  view.elastic->on_death = [&] { host.on_death(); };
  view.on_failure = [&] { host.gives_up(); };
  view.on_interruption = view.on_failure;
  const auto epochs = [&](std::int64_t number) -> std::optional<EpochMembers> {
    const auto epoch = host.epoch(number);
    return epoch ? std::optional(members_here(*epoch, host.name())) : std::nullopt;
  };
  return supervise(options, signals, folder, front_fd, std::move(job), view, epochs, [&](const JobOutcome& outcome) {
    const std::string reason = host.leave();
    if (!reason.empty()) return std::pair(kHostLostExit, concat("gradwire-run: ", reason, "\n"));
    if (const std::string& dropped = host.why_dropped(); !dropped.empty() && outcome.exit_code() == 0)
      return std::pair(0, concat("gradwire-run: this host has left the job: ", dropped,
                                 "; bring it back with --join when the path between the two is mended\n"));
    if (const std::string left = sentence_of_leaving(outcome); !left.empty())
      return std::pair(0, concat("gradwire-run: ", left, "\n"));
    return std::pair(outcome.exit_code(), report_of(options, outcome));
  });
}

}  // namespace gradwire::launch
