// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The command line of gradwire-run.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gradwire/membership/slow_ranks.h"

namespace gradwire::launch {

inline constexpr int kMaxRanks = 64;

enum class StdinMode { rank0, none };
enum class ColorMode { automatic, always, never };

// This host's place in a job over several hosts.
struct NodeOptions {
  int nodes = 1;
  int node = 0;
  std::string host;               // where node 0 serves the rendezvous; empty: the job has one host and no rendezvous
  std::uint16_t port = 0;         // the port of the rendezvous
  std::string job_id;             // letters, digits, '.', '_' and '-'; empty: not named
  std::uint16_t master_port = 0;  // 0: any free one
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10);
};

// The hosts of --hosts, each of which gets a launcher. The first one's is node 0, or begins the elastic job that the
// others join.
struct RemoteOptions {
  std::vector<std::string> hosts;  // empty: no --hosts, the ranks are started on this host
  std::string shell;               // the command of --ssh, which may hold {host} and {command}
};

// A job whose ranks die and are replaced: --elastic, or --join on the hosts that come to it.
struct ElasticOptions {
  bool joins = false;   // --join: the job runs at NodeOptions::host; of the others, only deaths_per_minute counts
  bool serves = false;  // --serve: this launcher holds the job at NodeOptions::host, and starts no ranks
  int min = 1;          // the job trains on with so many ranks or more
  int max = 1;          // and has at most so many
  int deaths_per_minute = 10;    // more failures of ranks end the job
  std::string log;               // the file of the journal of memberships; empty: a temporary one
  std::string replay;            // the journal of a job whose epochs are played again; empty: none
  std::optional<SlowRule> slow;  // the rule of --drop-slow
  bool replace_stalled = false;  // kill a rank of this host for which the others wait longer than Options::stall
};

struct Options {
  int ranks = 0;                     // on each host, 1 to kMaxRanks; with --serve, of the job's first epoch
  std::vector<std::string> command;  // the program and its arguments; empty with --serve only
  std::vector<std::pair<std::string, std::string>> extra_environment;
  std::optional<std::chrono::milliseconds> timeout;           // for the whole job
  std::chrono::milliseconds grace = std::chrono::seconds(1);  // between SIGTERM and SIGKILL
  std::optional<std::chrono::milliseconds> stall;             // how long a job may stand still before it is told
  std::string flight_folder;                                  // for the ranks' last calls; empty: they are not written
  std::string record_folder;                                  // for the ranks' steps; empty: they are not recorded
  bool watch = false;                                         // show on stderr how the ranks get on
  std::optional<std::uint16_t> watch_port;                    // of the page that shows it; 0: any free one
  // Whether somebody sees here how the ranks get on.
  bool is_watched() const noexcept { return watch || watch_port.has_value(); }
  bool report_steps = false;  // say on stderr how the ranks get on, in lines for the launcher that started this one
  std::string log_folder;     // empty: output goes to the launcher's stdout and stderr
  StdinMode stdin_mode = StdinMode::rank0;
  ColorMode color = ColorMode::automatic;
  int max_restarts = 0;     // of all ranks, when one fails
  std::string secret_file;  // holds the job's secret; empty: GRADWIRE_SECRET_FILE, "-": the first line of stdin
  NodeOptions node;
  RemoteOptions remote;
  std::optional<ElasticOptions> elastic;
  bool end_with_stdin = false;  // the end of stdin has the effect of SIGTERM
  bool pin = false;
  bool prefix = true;
};

// The result of --help, --version or --info: a text to print on stdout before exiting with 0.
struct Information {
  std::string text;
};

// Returns the arguments of gradwire-run on host `node` of --hosts, without the program's name. That gradwire-run reads
// its secret from stdin.
std::vector<std::string> arguments_for_host(const Options& options, int node);

// Reads the command line. All arguments after the program's name belong to the program. Throws LaunchError(kUsageExit)
// with one sentence that states the mistake.
std::variant<Options, Information> parse_options(int argc, const char* const* argv);

}  // namespace gradwire::launch
