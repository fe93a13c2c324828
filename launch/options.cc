// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>

#include "gradwire/backend/info.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"
#include "launch/command_line.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

constexpr const char* kDefaultShell = "ssh -o BatchMode=yes {host} {command}";
constexpr const char* kDefaultPort = "29400";

[[noreturn]] void refuse_option(const std::string& sentence) { throw LaunchError(kUsageExit, sentence); }

int read_number(const char* option, const std::string& text, int low, int high) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < low || value > high) {
    refuse_option(concat(option, " is '", text, "'; it must be a whole number from ", low, " to ", high));
  }
  return value;
}

int read_ranks(const std::string& text) {
  if (text.empty()) refuse_option(concat("say how many ranks to start: -n N, with N from 1 to ", kMaxRanks));
  return read_number("-n", text, 1, kMaxRanks);
}

std::chrono::milliseconds read_seconds(const char* option, const std::string& text, bool zero_allowed) {
  constexpr double kLongest = 1e9;
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool is_number = result.ec == std::errc() && result.ptr == end && std::isfinite(value);
  if (!is_number || value < 0 || value > kLongest || (value == 0 && !zero_allowed)) {
    refuse_option(concat(option, " is '", text, "'; it must be a number of seconds, ",
                         zero_allowed ? "zero or more" : "more than zero", ", and at most ",
                         static_cast<long long>(kLongest)));
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(value * 1000)));
}

template <class Enum>
Enum read_word(const char* option, const std::string& word, const std::map<std::string, Enum>& words) {
  const auto found = words.find(word);
  if (found != words.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  refuse_option(concat(option, " is '", word, "'; it must be one of ", join(names, ", ")));
}

std::pair<std::string, std::string> read_assignment(const std::string& text) {
  constexpr std::array kReserved = {"RANK",
                                    "LOCAL_RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "GROUP_RANK",
                                    "GROUP_WORLD_SIZE",
                                    "GRADWIRE_RENDEZVOUS",
                                    "GRADWIRE_JOB_ID",
                                    "GRADWIRE_RUN_ID",
                                    "GRADWIRE_ATTEMPT",
                                    "GRADWIRE_ELASTIC",
                                    "GRADWIRE_ELASTIC_HOST",
                                    "GRADWIRE_SECRET_FILE"};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    refuse_option(concat("--env is '", text, "'; it must read NAME=VALUE"));
  std::string name = text.substr(0, equals);
  if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
    refuse_option(concat("--env cannot set ", name, ": gradwire-run gives it to each rank itself"));
  }
  return {std::move(name), text.substr(equals + 1)};
}

std::vector<std::string> read_command(std::vector<std::string> rest, const std::vector<std::string>& known) {
  if (!rest.empty() && rest.front() == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest.front().starts_with('-')) {
    const std::string name = rest.front().substr(0, rest.front().find('='));
    refuse_option(concat("unknown option '", name, "'", did_you_mean(name, known), "; see gradwire-run --help"));
  }
  if (rest.empty() || rest.front().empty())
    refuse_option("say which program to run: gradwire-run -n N program arguments...");
  return rest;
}

std::uint16_t read_port(const char* option, const std::string& text) {
  return static_cast<std::uint16_t>(read_number(option, text, 1, 65535));
}

void read_rendezvous(NodeOptions& node, const std::string& text, const char* option = "--rendezvous") {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    refuse_option(concat(option, " is '", text, "'; it must read HOST:PORT"));
  node.host = text.substr(0, colon);
  if (node.host.size() > 2 && node.host.front() == '[' && node.host.back() == ']') {
    node.host = node.host.substr(1, node.host.size() - 2);
  }
  node.port = read_port(concat("the port of ", option).c_str(), text.substr(colon + 1));
}

std::vector<std::string> read_hosts(const std::string& text) {
  std::vector<std::string> hosts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    hosts.push_back(text.substr(begin, end - begin));
    // A name that begins with a dash would be an option of ssh.
    if (hosts.back().empty() || hosts.back().front() == '-') {
      refuse_option(concat("--hosts is '", text, "'; it must be a list of host names: a,b,c"));
    }
    begin = end + 1;
  }
  return hosts;
}

NodeOptions read_node(const RawOptions& raw, int hosts) {
  constexpr int kMaxNodes = 1024;
  NodeOptions node;
  if (!raw.nodes.empty()) node.nodes = read_number("--nnodes", raw.nodes, 1, kMaxNodes);
  if (hosts != 0) node.nodes = hosts;
  if (!raw.node.empty()) node.node = read_number("--node-rank", raw.node, 0, node.nodes - 1);
  if (!raw.rendezvous.empty()) read_rendezvous(node, raw.rendezvous);
  if (!raw.join.empty()) read_rendezvous(node, raw.join, "--join");
  if (!raw.serve.empty()) read_rendezvous(node, raw.serve, "--serve");
  if (!raw.master_port.empty()) node.master_port = read_port("--master-port", raw.master_port);
  node.rendezvous_timeout = read_seconds("--rendezvous-timeout", raw.rendezvous_timeout, false);
  node.heartbeat_timeout = read_seconds("--heartbeat-timeout", raw.heartbeat_timeout, false);
  node.job_id = raw.job_id;
  const auto plain = [](unsigned char byte) {
    return std::isalnum(byte) != 0 || byte == '.' || byte == '_' || byte == '-';
  };
  if (!std::all_of(node.job_id.begin(), node.job_id.end(), plain)) {
    refuse_option(concat("--job-id is '", node.job_id, "'; it may hold letters, digits, '.', '_' and '-'"));
  }
  if (hosts != 0) return node;
  if (node.nodes > 1 && raw.node.empty()) refuse_option("--nnodes wants --node-rank: the number of this host, from 0");
  if (node.nodes > 1 && node.host.empty()) refuse_option("--nnodes wants --rendezvous HOST:PORT: where node 0 listens");
  return node;
}

void read_several_hosts(Options& options, const RawOptions& raw) {
  if (!raw.hosts.empty()) {
    if (!raw.nodes.empty() || !raw.node.empty()) {
      refuse_option(
          "--hosts starts gradwire-run on all hosts; --nnodes and --node-rank are for starting it on each yourself");
    }
    options.remote.hosts = read_hosts(raw.hosts);
    options.remote.shell = raw.shell.empty() ? kDefaultShell : raw.shell;
  } else if (!raw.shell.empty()) {
    refuse_option("--ssh says how --hosts reaches a host; give --hosts too");
  }
  options.node = read_node(raw, static_cast<int>(options.remote.hosts.size()));
  if (!options.remote.hosts.empty() && options.node.host.empty()) {
    std::string first = options.remote.hosts.front();
    read_rendezvous(options.node, concat(first.substr(first.find('@') + 1), ":", kDefaultPort));
  }
  options.secret_file = raw.secret_file;
  options.end_with_stdin = raw.end_with_stdin;
  const bool stdin_is_taken = options.secret_file == "-" || options.end_with_stdin || !options.remote.hosts.empty();
  if (stdin_is_taken) options.stdin_mode = StdinMode::none;
}

// The job that --join names. The options of the job are those of the host that began it.
ElasticOptions read_join(const RawOptions& raw) {
  for (const auto& [name, value] :
       {std::pair("--elastic", &raw.elastic), std::pair("--membership-log", &raw.membership_log),
        std::pair("--replay", &raw.replay), std::pair("--drop-slow", &raw.drop_slow), std::pair("--hosts", &raw.hosts),
        std::pair("--nnodes", &raw.nodes), std::pair("--rendezvous", &raw.rendezvous)}) {
    if (!value->empty())
      refuse_option(
          concat("--join brings this host into a job that runs; ", name, " belongs to the host that began it"));
  }
  ElasticOptions elastic;
  elastic.joins = true;
  return elastic;
}

ElasticOptions read_sizes(const std::string& text, int ranks) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) refuse_option(concat("--elastic is '", text, "'; it must read MIN:MAX"));
  ElasticOptions elastic;
  elastic.min = read_number("MIN of --elastic", text.substr(0, colon), 1, kMaxRanks);
  elastic.max = read_number("MAX of --elastic", text.substr(colon + 1), 1, kMaxRanks);
  if (elastic.min > elastic.max)
    refuse_option(concat("--elastic is '", text, "'; MIN is larger than MAX, give the smaller number first"));
  if (ranks < elastic.min || ranks > elastic.max)
    refuse_option(concat("-n is ", ranks, "; with --elastic ", text, " it must be a number from ", elastic.min, " to ",
                         elastic.max));
  return elastic;
}

// The rule of --drop-slow FACTOR:STEPS.
SlowRule read_drop_slow(const std::string& text) {
  const auto colon = text.find(':');
  SlowRule rule{.drop = true};
  const char* const end = text.data() + std::min(colon, text.size());
  const auto [rest, problem] = std::from_chars(text.data(), end, rule.factor);
  if (colon == std::string::npos || problem != std::errc() || rest != end || !std::isfinite(rule.factor) ||
      rule.factor <= 1) {
    refuse_option(concat("--drop-slow is '", text,
                         "'; it must read FACTOR:STEPS, a number above 1 and a number of steps in a row: 3:20"));
  }
  rule.steps = read_number("STEPS of --drop-slow", text.substr(colon + 1), 1, 1000000);
  return rule;
}

// What --replace-stalled goes by.
void require_stall_checks(const Options& options) {
  if (!options.stall)
    refuse_option(
        "--replace-stalled kills a rank for which the others have waited for the time of --stall; give "
        "--stall SECONDS too");
  const std::string name = "GRADWIRE_FLIGHT_RECORDER";
  const bool is_elsewhere = std::any_of(options.extra_environment.begin(), options.extra_environment.end(),
                                        [&](const auto& entry) { return entry.first == name; });
  if (is_elsewhere || environment(name.c_str()) == "off")
    refuse_option(concat("--replace-stalled goes by the calls that the ranks record for gradwire-run; leave ", name,
                         " out of the environment and of --env"));
}

std::optional<ElasticOptions> read_elastic(const RawOptions& raw, const Options& options) {
  if (raw.elastic.empty() && raw.join.empty()) {
    if (raw.replace_stalled)
      refuse_option(
          "--replace-stalled replaces a rank of a job that goes on without it; give --elastic MIN:MAX or --join too");
    if (!raw.deaths_per_minute.empty() || !raw.membership_log.empty() || !raw.replay.empty() || !raw.drop_slow.empty())
      refuse_option(
          "--deaths-per-minute, --drop-slow, --membership-log and --replay belong to --elastic; give --elastic MIN:MAX "
          "too");
    return std::nullopt;
  }
  ElasticOptions elastic = raw.join.empty() ? read_sizes(raw.elastic, options.ranks) : read_join(raw);
  if (options.max_restarts > 0)
    refuse_option("--max-restarts starts all ranks again, and --elastic the one that died; give one of them");
  if (!raw.nodes.empty() || !raw.node.empty())
    refuse_option(
        "--elastic begins on one host, and others come with --join, or with --hosts all at once; leave --nnodes and "
        "--node-rank out");
  if (!options.remote.hosts.empty() && !raw.replay.empty())
    refuse_option("--replay plays a job on one host, also where the job had several; leave --hosts out");
  if (!raw.deaths_per_minute.empty())
    elastic.deaths_per_minute = read_number("--deaths-per-minute", raw.deaths_per_minute, 0, 1000000);
  elastic.log = raw.membership_log;
  elastic.replay = raw.replay;
  if (!raw.drop_slow.empty()) elastic.slow = read_drop_slow(raw.drop_slow);
  elastic.replace_stalled = raw.replace_stalled;
  if (elastic.replace_stalled) require_stall_checks(options);
  return elastic;
}

// A launcher without ranks: of the other options, those of the job, its secret and its time limits count.
Options check_serve(const RawOptions& raw, const std::vector<std::string>& rest) {
  const std::initializer_list<std::pair<const char*, bool>> of_ranks = {
      {"--join", !raw.join.empty()},
      {"--replay", !raw.replay.empty()},
      {"--rendezvous", !raw.rendezvous.empty()},
      {"--hosts", !raw.hosts.empty()},
      {"--nnodes", !raw.nodes.empty()},
      {"--deaths-per-minute", !raw.deaths_per_minute.empty()},
      {"--max-restarts", raw.max_restarts != "0"},
      {"--timeout", !raw.timeout.empty()},
      {"--env", !raw.environment.empty()},
      {"--pin", raw.pin},
      {"--stall", !raw.stall.empty()},
      {"--replace-stalled", raw.replace_stalled},
      {"--flight-dir", !raw.flight_folder.empty()},
      {"--record", !raw.record_folder.empty()},
      {"--log-dir", !raw.log_folder.empty()},
      {"--watch", raw.watch},
      {"--watch-port", !raw.watch_port.empty()},
      {"--report-steps", raw.report_steps},
      {"--node-rank", !raw.node.empty()},
      {"--master-port", !raw.master_port.empty()},
      {"--ssh", !raw.shell.empty()},
      {"--end-with-stdin", raw.end_with_stdin},
      {"--grace", raw.grace != "1"},
      {"--stdin", raw.stdin_mode != "rank0"},
      {"--color", raw.color != "auto"},
      {"--no-prefix", raw.no_prefix}};
  for (const auto& [name, given] : of_ranks) {
    if (given)
      refuse_option(concat("--serve holds a job for hosts that join it, and starts no ranks; leave ", name, " out"));
  }
  if (!rest.empty())
    refuse_option(concat("--serve starts no program; give '", rest.front(), "' to the hosts that --join the job"));
  if (raw.elastic.empty()) refuse_option("--serve holds an elastic job; give --elastic MIN:MAX too");
  if (raw.membership_log.empty())
    refuse_option("--serve wants --membership-log FILE: the journal from which it goes on when it is started again");
  Options options;
  const std::string first = raw.ranks.empty() ? raw.elastic.substr(0, raw.elastic.find(':')) : raw.ranks;
  options.ranks = read_ranks(first);
  options.elastic = read_sizes(raw.elastic, options.ranks);
  options.elastic->serves = true;
  options.elastic->log = raw.membership_log;
  if (!raw.drop_slow.empty()) options.elastic->slow = read_drop_slow(raw.drop_slow);
  options.node = read_node(raw, 0);
  options.secret_file = raw.secret_file;
  return options;
}

std::vector<std::string> names_of_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(concat("--", name));
  }
  return names;
}

// `known`: the names of all options.
Options check(const RawOptions& raw, std::vector<std::string> rest, const std::vector<std::string>& known) {
  if (!raw.serve.empty()) return check_serve(raw, rest);
  Options options;
  options.command = read_command(std::move(rest), known);
  options.ranks = read_ranks(raw.ranks);
  for (const auto& text : raw.environment) options.extra_environment.push_back(read_assignment(text));
  if (!raw.timeout.empty()) options.timeout = read_seconds("--timeout", raw.timeout, false);
  const std::string stall = raw.stall.empty() ? environment("GRADWIRE_STALL_SECONDS").value_or("") : raw.stall;
  if (!stall.empty())
    options.stall = read_seconds(raw.stall.empty() ? "GRADWIRE_STALL_SECONDS" : "--stall", stall, false);
  options.flight_folder = raw.flight_folder;
  // A program may go to another folder before it records.
  if (!raw.record_folder.empty()) options.record_folder = std::filesystem::absolute(raw.record_folder).string();
  options.watch = raw.watch;
  if (!raw.watch_port.empty())
    options.watch_port = static_cast<std::uint16_t>(read_number("--watch-port", raw.watch_port, 0, 65535));
  options.report_steps = raw.report_steps;
  options.grace = read_seconds("--grace", raw.grace, true);
  options.stdin_mode =
      read_word<StdinMode>("--stdin", raw.stdin_mode, {{"rank0", StdinMode::rank0}, {"none", StdinMode::none}});
  options.color = read_word<ColorMode>(
      "--color", raw.color,
      {{"auto", ColorMode::automatic}, {"always", ColorMode::always}, {"never", ColorMode::never}});
  options.log_folder = raw.log_folder;
  options.pin = raw.pin;
  options.prefix = !raw.no_prefix;
  options.max_restarts = read_number("--max-restarts", raw.max_restarts, 0, 1000000);
  read_several_hosts(options, raw);
  options.elastic = read_elastic(raw, options);
  return options;
}

}  // namespace

std::variant<Options, Information> parse_options(int argc, const char* const* argv) {
  CLI::App app("", "gradwire-run");
  RawOptions raw;
  declare(app, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Information{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Information{concat(version.what(), "\n")};
  } catch (const CLI::ParseError& error) {
    refuse_option(concat(error.what(), "; see gradwire-run --help"));
  }
  // As of --log-dir "$UNSET".
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty()) refuse_option(concat(option->get_name(), ": the value is empty"));
    }
  }
  if (raw.info) return Information{installation_info()};
  return check(raw, app.remaining(), names_of_options(app));
}

}  // namespace gradwire::launch
