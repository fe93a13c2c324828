// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/elastic_coordinator.h"

#include <signal.h>
#include <unistd.h>

#include <exception>
#include <string_view>

#include "gradwire/base/strings.h"
#include "gradwire/membership/coordinator.h"
#include "gradwire/membership/job_store.h"
#include "launch/launch_error.h"
#include "launch/patient_coordinator.h"
#include "launch/pulse.h"
#include "launch/say.h"

namespace gradwire::launch {
namespace {

constexpr const char* kMark = "--coordinate-elastic-job";
// The program, the mark, the store, the journal, three numbers, the journal to replay, the host timeout in ms, and the
// rule for slow ranks.
constexpr int kArguments = 10;

}  // namespace

std::vector<std::string> coordinator_command(const ElasticOptions& options, int ranks, const std::string& store,
                                             const std::string& journal, std::chrono::milliseconds host_timeout) {
  return {"/proc/self/exe",
          kMark,
          store,
          journal,
          std::to_string(options.min),
          std::to_string(options.max),
          std::to_string(ranks),
          options.replay,
          std::to_string(host_timeout.count()),
          options.slow ? membership::to_text(*options.slow) : ""};
}

bool is_coordinator_command(int argc, const char* const* argv) {
  return argc == kArguments && std::string_view(argv[1]) == kMark;
}

membership::CoordinatorOptions coordinator_options(const ElasticOptions& options, int ranks, const std::string& journal,
                                                   std::chrono::milliseconds host_timeout) {
  membership::CoordinatorOptions made;
  made.journal = journal;
  made.roster = {.min = options.min, .max = options.max, .first = ranks};
  if (!options.replay.empty()) made.roster.replay = membership::read_membership_log(options.replay);
  made.host_timeout = host_timeout;
  made.slow = options.slow;
  made.tell = [](const std::string& sentence) { say_unless_it_waits(sentence); };
  return made;
}

int run_coordinator(const char* const* argv) noexcept {
  // A journal that reaches the limit of a file's size is an error that can be told.
  ::signal(SIGXFSZ, SIG_IGN);
  // A reader of stderr that has gone (| head) ends no coordinator.
  ::signal(SIGPIPE, SIG_IGN);
  try {
    ElasticOptions options;
    options.min = std::stoi(argv[4]);
    options.max = std::stoi(argv[5]);
    options.replay = argv[7];
    if (*argv[9] != '\0') options.slow = membership::slow_rule_of(argv[9]);
    Pulse pulse(STDOUT_FILENO);
    PatientCoordinator(membership::open_job_store(argv[2]),
                       coordinator_options(options, std::stoi(argv[6]), argv[3], Milliseconds(std::stoll(argv[8]))))
        .run([&] { pulse.beat(); });
  } catch (const std::exception& error) {
    say_unless_it_waits(concat("the coordinator: ", error.what()));
  }
  return kLaunchFailedExit;
}

}  // namespace gradwire::launch
