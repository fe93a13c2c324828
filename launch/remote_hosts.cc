// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// --hosts: one gradwire-run on each host, through ssh or what stands in for it. Here they are like ranks: watched, and
// stopped when they do not end by themselves. Of an elastic job, the one on the first host begins, and the others join.
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "launch/job.h"
#include "launch/launch_error.h"
#include "launch/output.h"
#include "launch/pipe.h"
#include "launch/remote_command.h"
#include "launch/report.h"

namespace gradwire::launch {
namespace {

// ssh's own exit code for what went wrong with the connection.
constexpr int kSshFailed = 255;

std::string draw_secret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += random_job_id();
  return secret;
}

// How the launcher on a host is fed: its stdin holds the secret and then signals, and ends when this process does.
struct Feed {
  UniqueFd reader;
  UniqueFd writer;
  std::size_t secret_bytes = 0;  // that come first, with the end of the line
};

Feed feed(const std::string& secret) {
  auto [reader, writer] = make_pipe("to a host");
  const std::string line = secret + "\n";
  Feed made{std::move(reader), std::move(writer), line.size()};
  if (::write(made.writer.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw_errno("cannot write to a host");
  }
  return made;
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "gradwire-run" : path.string();
}

// A launcher reads its secret first of all, so one whose secret is there still never ran. ssh reads it in any case.
bool has_run(const Feed& feed) {
  int unread = 0;
  return ::ioctl(feed.reader.get(), FIONREAD, &unread) != 0 || static_cast<std::size_t>(unread) < feed.secret_bytes;
}

// The hosts whose commands ended, and ran no launcher. ssh says itself why it failed.
std::string report_of_absent(const Options& options, const JobOutcome& outcome, const std::vector<Feed>& feeds) {
  std::string text;
  for (std::size_t host = 0; host < outcome.ends.size(); ++host) {
    const auto& end = outcome.ends[host];
    if (!end || end->by_signal || end->code == kSshFailed || has_run(feeds[host])) continue;
    text += concat("gradwire-run: host ", options.remote.hosts[host], ": the command of --ssh ended with ", end->code,
                   ", and ran no gradwire-run there; it gets the host and the command, and has to pass its stdin on\n");
  }
  return text;
}

// The launchers report what happens to their ranks themselves.
std::string report_of_hosts(const Options& options, const JobOutcome& outcome) {
  std::string text;
  const auto first = outcome.first_bad;
  if (first && outcome.interrupted_by == 0 && outcome.ends[*first]->by_signal) {
    text += concat("gradwire-run: the launcher on host ", options.remote.hosts[static_cast<std::size_t>(*first)],
                   " died first, of ", describe(*outcome.ends[*first]),
                   "; --hosts starts no launcher again, and ended the job on the other hosts\n");
  }
  for (std::size_t host = 0; host < outcome.ends.size(); ++host) {
    const auto& end = outcome.ends[host];
    if (!end || end->by_signal || end->code != kSshFailed) continue;
    text += concat("gradwire-run: host ", options.remote.hosts[host],
                   ": exit code 255, as ranks may have it, and ssh when it cannot connect or loses the connection\n");
  }
  return text;
}

}  // namespace

int run_on_hosts(const Options& options, const std::string& secret, SignalQueue& signals, int front_fd) {
  const std::string shared = secret.empty() ? draw_secret() : secret;
  Options here = options;
  here.pin = false;  // these are the hosts' affairs
  here.log_folder.clear();
  here.prefix = options.prefix || options.is_watched();  // a watch takes lines of its own out of the output
  std::error_code ignored;
  const std::string folder = std::filesystem::current_path(ignored).string();
  Options there = options;
  // A launcher does not know what this one writes to.
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  there.color = use_color(options.color, is_terminal) ? ColorMode::always : ColorMode::never;
  std::vector<Feed> feeds;
  std::vector<RankCommand> launchers;
  for (std::size_t host = 0; host < options.remote.hosts.size(); ++host) {
    std::vector<std::string> command = {own_program()};
    for (auto& argument : arguments_for_host(there, static_cast<int>(host))) command.push_back(std::move(argument));
    feeds.push_back(feed(shared));
    launchers.push_back({remote_command(options.remote.shell, options.remote.hosts[host], folder, command),
                         inherited_environment(), feeds.back().reader.get(), feeds.back().writer.get()});
  }
  // When one fails the others learn it among themselves.
  const Milliseconds notice = options.node.heartbeat_timeout + options.grace + std::chrono::seconds(10);
  here.grace = notice;
  JobView view{.names = {.bare = true}, .notice_time = notice, .gentle = true};
  if (options.elastic) {
    // The first host holds the job, and ends the others with it.
    view.goes_on_without = [&](int host, const ProcessEnd& end) {
      if (host == 0) return std::string();
      return concat("gradwire-run: the launcher on host ", options.remote.hosts[static_cast<std::size_t>(host)],
                    " has ended (", describe(end), "); the job lives as long as that on host ",
                    options.remote.hosts.front(), "\n");
    };
  }
  std::optional<LiveWatch> live;
  if (options.is_watched()) {
    auto reports = std::make_unique<HostReports>();
    view.filter = [source = reports.get()](std::string_view line) { return source->take(line); };
    live.emplace(options, std::move(reports));
    live->follow(0, options.ranks * static_cast<int>(options.remote.hosts.size()));
    view.live = &*live;
  }
  Supervisor supervisor(here, signals, front_fd, view);
  const JobOutcome outcome = supervisor.run(launchers);
  const std::string absent = report_of_absent(options, outcome, feeds);
  supervisor.finish_output(report_of_hosts(options, outcome) + absent);
  return absent.empty() || outcome.interrupted_by != 0 ? outcome.exit_code() : kHostsFailedExit;
}

}  // namespace gradwire::launch
