// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/elastic_watch.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/journal.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

ElasticWatch::ElasticWatch(ElasticView view, const SignalQueue& signals, RankSet& ranks, DeathWatch& deaths)
    : view_(std::move(view)), signals_(signals), ranks_(ranks), deaths_(deaths), pulse_(view_.coordinator_limit) {}

ElasticWatch::~ElasticWatch() { stop(); }

void ElasticWatch::start() {
  if (!view_.coordinator) return;
  const UniqueFd beats = pulse_.begin(Deadline::Clock::now());
  was_silent_ = false;
  RankStart start{.name = "the coordinator of the elastic job",
                  .command = view_.coordinator->command,
                  .environment = view_.coordinator->environment,
                  .cpus = CpuSet(),
                  .stdin_fd = ranks_.null_fd(),
                  .stdout_fd = beats.get(),
                  .stderr_fd = STDERR_FILENO,
                  .signal_mask = signals_.original_mask()};
  coordinator_ = start_rank(start, [&](int pidfd) { deaths_.add(kCoordinator, start.name, pidfd); });
}

void ElasticWatch::stop() noexcept {
  if (coordinator_.pid <= 0) return;
  deaths_.remove(coordinator_.pidfd.get());
  ::kill(coordinator_.pid, SIGKILL);
  reap(coordinator_.pid);
  coordinator_ = {};
  pulse_.end();
}

void ElasticWatch::look(PulseWatch::Time now) {
  if (coordinator_.pid <= 0 || !pulse_.finds_silence(now)) return;
  was_silent_ = true;
  ::kill(coordinator_.pid, SIGKILL);
}

ElasticWatch::Answer ElasticWatch::on_coordinator_end() {
  deaths_.remove(coordinator_.pidfd.get());
  const ProcessEnd end = reap(coordinator_.pid);
  coordinator_ = {};
  pulse_.end();
  const auto fails = [](const std::string& what) { return Answer{.text = concat("gradwire-run: ", what, "\n")}; };
  // Said why, and has not begun: it would say the same again.
  if (!end.by_signal && end.code == kLaunchFailedExit && !membership::has_begun(view_.journal))
    return fails("the coordinator of the elastic job could not begin; it says why above");
  if (coordinator_deaths_.add(Deadline::Clock::now()) > view_.deaths_per_minute) {
    return fails(concat("the coordinator of the elastic job ended more than ", view_.deaths_per_minute,
                        " times within a minute, last of ", describe(end)));
  }
  const std::string why = was_silent_
                              ? concat("gave no sign of life for ",
                                       static_cast<double>(view_.coordinator_limit.count()) / 1000, " s, was killed")
                              : concat("died of ", describe(end));
  try {
    start();
  } catch (const LaunchError& error) {
    return fails(error.what());
  }
  return {.goes_on = true,
          .is_replaced = true,
          .text = concat("gradwire-run: the coordinator ", why, ", and goes on from its journal as a new process\n")};
}

ElasticWatch::Answer ElasticWatch::on_rank_death(pid_t process, const EarlierDeath& death,
                                                 std::function<std::vector<std::string>()> last_lines) {
  if (view_.on_death) view_.on_death();
  const int deaths = rank_deaths_.add(Deadline::Clock::now());
  // First: where the job is another host's, this host has read what was told until now once the store has answered.
  const bool answers = !view_.answers || view_.answers();
  const membership::JobCourse course = view_.course();
  first_deaths_.erase(first_deaths_.begin(), first_deaths_.lower_bound(course.row_epoch()));
  const std::string what =
      concat("gradwire-run: rank ", ranks_.number_of(death.rank), " died of ", describe(death.end));
  const char* const end = view_.coordinator ? ", so the job ends\n" : ", so this host leaves the job\n";
  const auto too_many = [&](int number, const std::string& since) {
    return Answer{.text = concat(what, "; that is death ", number, " ", since, ", more than --deaths-per-minute ",
                                 view_.deaths_per_minute, end)};
  };
  if (course.has_finished_with(view_.host, process)) {
    return {.goes_on = true,
            .fails_the_job = true,
            .text = concat(what, " after the job's last step was counted; no process takes its place\n")};
  }
  if (course.has_lost_state()) return {.text = concat(what, "; ", membership::kStateIsLost, end)};
  if (answers) {
    if (deaths > view_.deaths_per_minute) return too_many(deaths, "within a minute");
    // The log may not have this death yet.
    if (const int in_a_row = course.deaths_in_a_row(); in_a_row > view_.deaths_per_minute) {
      return too_many(
          in_a_row, concat("of a member since the job last came further, which was to step ", course.furthest_step()));
    }
  }
  Answer answer{.goes_on = true,
                .is_replaced = true,
                .text = concat(what, ", and a new process takes its place (death ", deaths, " within a minute)\n")};
  try {
    ranks_.start_again(death.rank);
  } catch (const LaunchError& error) {
    // The program's file may be written at this moment, or there may be too many processes.
    answer.is_replaced = false;
    answer.goes_on = !ranks_.running().empty();
    answer.text +=
        concat("gradwire-run: ", error.what(), answer.goes_on ? "; the job goes on without this rank\n" : "\n");
  }
  if (answer.goes_on) first_deaths_.try_emplace(course.epoch(), First{death, std::move(last_lines)});
  return answer;
}

std::optional<EarlierDeath> ElasticWatch::first_of_row() const {
  if (first_deaths_.empty()) return std::nullopt;
  const First& first = first_deaths_.begin()->second;
  EarlierDeath death = first.death;
  death.last_lines = first.last_lines();
  return death;
}

}  // namespace gradwire::launch
