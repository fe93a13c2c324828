// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-run: see docs/launcher.md.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/store/secret.h"
#include "launch/descriptor_limit.h"
#include "launch/elastic_coordinator.h"
#include "launch/job.h"
#include "launch/keeper.h"
#include "launch/launch_error.h"
#include "launch/options.h"
#include "launch/rendezvous_folder.h"
#include "launch/signals.h"

namespace gradwire::launch {
namespace {

// A pipe that got the number of a closed stdin, stdout or stderr would be taken for it.
void fill_standard_descriptors() {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) ::close(fd);
}

// Empty where the job needs none. A file that was named must hold one even then.
std::string find_secret(const Options& options) {
  if (options.secret_file == "-") return read_secret_line(STDIN_FILENO);
  const bool needed = !options.node.host.empty();
  try {
    if (!options.secret_file.empty()) {
      std::string secret = read_secret_file(options.secret_file);
      return needed ? secret : "";
    }
    return needed ? secret_from_environment([](const char* name) { return environment(name); }) : "";
  } catch (const InvalidArgument& problem) {
    throw LaunchError(kUsageExit, problem.what());
  }
}

int run_job(const Options& options, const std::string& secret, SignalQueue& signals, RendezvousFolder& folder,
            int front_fd) {
  if (!options.remote.hosts.empty()) return run_on_hosts(options, secret, signals, front_fd);
  const FolderUpkeep upkeep(folder);
  if (options.elastic && options.elastic->joins) return run_joined(options, secret, signals, folder, front_fd);
  if (options.elastic) return run_elastic(options, secret, signals, folder, front_fd);
  if (!options.node.host.empty()) return run_node(options, secret, signals, folder, front_fd);
  return run_alone(options, signals, folder, front_fd);
}

int run(int argc, char** argv) {
  try {
    const auto parsed = parse_options(argc, argv);
    if (const auto* information = std::get_if<Information>(&parsed)) {
      std::fputs(information->text.c_str(), stdout);
      return std::fflush(stdout) == 0 ? 0 : kLaunchFailedExit;
    }
    const auto& options = std::get<Options>(parsed);
    raise_descriptor_limit();
    SignalQueue signals;
    const std::string secret = find_secret(options);
    if (options.elastic && options.elastic->serves) return run_serve(options, secret, signals);
    // Removed by both processes of keeper.h, so by the one that is left.
    RendezvousFolder folder;
    return run_in_keeper(signals, options.end_with_stdin ? STDIN_FILENO : -1,
                         [&](int front_fd) { return run_job(options, secret, signals, folder, front_fd); });
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
  if (gradwire::launch::is_coordinator_command(argc, argv)) return gradwire::launch::run_coordinator(argv);
  return gradwire::launch::run(argc, argv);
}
