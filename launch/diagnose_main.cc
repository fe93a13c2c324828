// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-diagnose: see docs/diagnose.md.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "launch/flight_files.h"
#include "launch/flight_json.h"
#include "launch/launch_error.h"
#include "launch/process_look.h"
#include "launch/source_lines.h"

namespace gradwire::launch {
namespace {

constexpr int kFoundExit = 1;

struct Question {
  std::string folder;
  int job = 0;
  double bound = 5;  // seconds
  std::string output;
  bool as_json = false;
};

using observe::Occasion;
using observe::RankTable;

// The records of the ranks of a running job, and their processes now. Two looks at a process show whether it computes;
// the records are read after the first one, so that they are of this moment. A process whose end nobody has recorded
// may still run here: a program with GRADWIRE_FLIGHT_RECORDER and no launcher.
std::vector<RankTable> look_at_job(int job) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  std::map<int, ProcessLook> before;  // by process
  for (const RankTable& table : read_running_job(job)) {
    if (const auto look = look_at(table.pid)) before.emplace(table.pid, *look);
  }
  std::this_thread::sleep_for(kBetweenLooks);
  std::vector<RankTable> tables = read_running_job(job);
  for (RankTable& table : tables) {
    if (table.process.has_ended || table.process.seen) continue;
    const auto first = before.find(table.pid);
    const auto look = look_at(table.pid);
    if (look) add_look(table.process, *look, first == before.end() ? std::nullopt : std::optional(first->second));
  }
  return tables;
}

int answer(const Question& question) {
  std::vector<std::string> left_out;
  std::vector<RankTable> tables =
      question.job != 0 ? look_at_job(question.job) : read_flight_folder(question.folder, left_out);
  for (const std::string& file : left_out) std::fprintf(stderr, "gradwire-diagnose: left out: %s\n", file.c_str());
  Occasion occasion;
  occasion.is_over = question.job == 0;
  occasion.now = std::chrono::steady_clock::now().time_since_epoch().count();
  occasion.bound = static_cast<std::int64_t>(question.bound * 1e9);
  add_source_lines(tables, Deadline::after(std::chrono::seconds(30)));
  if (!question.output.empty()) write_flight_folder(question.output, tables);
  const observe::Diagnosis found = observe::diagnose(tables, occasion);
  const bool is_found = found.fault != observe::FaultClass::none;
  if (question.as_json) {
    std::printf("%s\n", diagnosis_line(found).c_str());
    return is_found ? kFoundExit : 0;
  }
  const std::string ranks = concat(tables.size(), tables.size() == 1 ? " rank" : " ranks");
  if (tables.empty()) {
    std::puts(
        "the ranks have recorded no calls on groups, so nothing is known of them (channels of the core record none)");
    return 0;
  }
  if (!is_found && question.job != 0) {
    std::printf("%s; no call has waited for %g s or longer (--bound)\n", ranks.c_str(), question.bound);
    return 0;
  }
  if (!is_found) {
    std::printf("%s, and nothing is wrong as far as their calls show\n", ranks.c_str());
    return 0;
  }
  std::fputs(observe::explain(found, tables, occasion).c_str(), stdout);
  return kFoundExit;
}

int list_jobs() {
  const std::vector<RunningJob> jobs = running_jobs();
  if (jobs.empty()) std::puts("no job of this user runs on this host");
  for (const RunningJob& job : jobs) std::printf("--job %d   %s\n", job.pid, job.command.c_str());
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Says which rank made a job fail or hang, in which call and how.\n\n"
      "  gradwire-diagnose DIR         the folder of gradwire-run --flight-dir, or of files of "
      "GRADWIRE_FLIGHT_RECORDER\n"
      "  gradwire-diagnose --job PID   the running job of the gradwire-run with this process id\n"
      "  gradwire-diagnose             lists the running jobs",
      "gradwire-diagnose");
  app.set_version_flag("--version", std::string("gradwire-diagnose " GRADWIRE_VERSION));
  app.footer("Exit code: 0 when nothing is wrong, 1 when a cause was found, 2 for a bad command line or bad files.");
  Question question;
  app.add_option("DIR", question.folder, "The folder with the ranks' records");
  app.add_option("--job", question.job, "The process id of a running gradwire-run")->type_name("PID");
  app.add_option("--bound", question.bound, "With --job: calls that wait for less than this are no trouble (default 5)")
      ->type_name("SECONDS");
  app.add_option("--write", question.output, "Write the records to this folder too, as JSON lines")->type_name("DIR");
  app.add_flag("--json", question.as_json, "Print the diagnosis as one JSON object, for programs");
  try {
    app.parse(argc, argv);
    if (question.folder.empty() && question.job == 0) return list_jobs();
    if (!question.folder.empty() && question.job != 0)
      throw LaunchError(kUsageExit, "give a folder, or --job PID, but not both");
    return answer(question);
  } catch (const CLI::Success& information) {
    return app.exit(information);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gradwire-diagnose: %s; see gradwire-diagnose --help\n", error.what());
    return kUsageExit;
  } catch (const LaunchError& error) {
    std::fprintf(stderr, "gradwire-diagnose: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire-diagnose: %s\n", error.what());
    return kLaunchFailedExit;
  }
}

}  // namespace
}  // namespace gradwire::launch

int main(int argc, char** argv) { return gradwire::launch::run(argc, argv); }
