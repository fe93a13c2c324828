// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-run: see docs/launcher.md.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "launch/cpu_share.h"
#include "launch/keeper.h"
#include "launch/launch_error.h"
#include "launch/options.h"
#include "launch/rank_environment.h"
#include "launch/rendezvous_folder.h"
#include "launch/report.h"
#include "launch/signals.h"
#include "launch/supervisor.h"

namespace gradwire::launch {
namespace {

// A pipe that got the number of a closed stdin, stdout or stderr would be taken for it.
void fill_standard_descriptors() {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) ::close(fd);
}

int run_job(const Options& options, SignalQueue& signals, const RendezvousFolder& rendezvous, int front_fd) {
  const JobEnvironment job{.ranks = options.ranks,
                           .rendezvous_file = rendezvous.store_file(),
                           .job_id = random_job_id(),
                           .master_port = find_free_port(),
                           .threads = threads_per_rank(allowed_cpus(), options.ranks),
                           .terminal = options.prefix && options.log_folder.empty() && ::isatty(STDOUT_FILENO) == 1,
                           .extra = options.extra_environment};
  Supervisor supervisor(options, signals, front_fd);
  const JobOutcome outcome = supervisor.run(job);
  supervisor.finish_output(report(outcome, options.timeout.value_or(std::chrono::milliseconds::zero())));
  return outcome.exit_code();
}

int run(int argc, char** argv) {
  try {
    const auto parsed = parse_options(argc, argv);
    if (const auto* information = std::get_if<Information>(&parsed)) {
      std::fputs(information->text.c_str(), stdout);
      return std::fflush(stdout) == 0 ? 0 : kLaunchFailedExit;
    }
    SignalQueue signals;
    // Removed by both processes of keeper.h, so by the one that is left.
    const RendezvousFolder rendezvous;
    return run_in_keeper(
        signals, [&](int front_fd) { return run_job(std::get<Options>(parsed), signals, rendezvous, front_fd); });
  } catch (const LaunchError& error) {
    std::fprintf(stderr, "gradwire-run: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire-run: %s\n", error.what());
    return kLaunchFailedExit;
  }
}

}  // namespace
}  // namespace gradwire::launch

int main(int argc, char** argv) {
  gradwire::launch::fill_standard_descriptors();
  return gradwire::launch::run(argc, argv);
}
