// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

constexpr const char* kDescription =
    "Starts N ranks of a program on this host, watches them and stops them.\n"
    "\n"
    "  gradwire-run -n 4 ./train --steps 100\n"
    "\n"
    "Each rank finds its place in the environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR, MASTER_PORT, GRADWIRE_RENDEZVOUS and more (docs/launcher.md). When one rank ends badly, the\n"
    "others get SIGTERM, then --grace seconds, then SIGKILL, and gradwire-run says which rank died first and of what.";

constexpr const char* kFooter =
    "Exit code: 0 when every rank left with 0; otherwise that of the rank that died first (128 + signal if a signal\n"
    "killed it); 128 + signal when the job was interrupted; 124 after --timeout; 2 for a bad command line; 126 or 127\n"
    "when the program cannot be run or found.";

// What the user wrote, before it is checked. Numbers are read here and not by CLI11, so that the sentences are ours.
struct RawOptions {
  std::string ranks;
  std::string timeout;
  std::string grace = "1";
  std::string stdin_mode = "rank0";
  std::string color = "auto";
  std::vector<std::string> environment;
  std::string log_folder;
  bool pin = false;
  bool no_prefix = false;
};

[[noreturn]] void refuse(const std::string& sentence) { throw LaunchError(kUsageExit, sentence); }

void declare(CLI::App& app, RawOptions& raw) {
  app.prefix_command();
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("gradwire-run " GRADWIRE_VERSION));
  app.add_option("-n,--ranks", raw.ranks, "How many ranks to start, 1 to 64 (required)")->type_name("N");
  app.add_flag("--pin", raw.pin, "Pin each rank to its share of the cores");
  app.add_option("--env", raw.environment, "Set a variable for every rank; may be given again")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("--log-dir", raw.log_folder, "Write DIR/rank-K.out and DIR/rank-K.err in place of the prefixed output")
      ->type_name("DIR");
  app.add_flag("--no-prefix", raw.no_prefix, "Pass output through as it comes; lines of two ranks may mix");
  app.add_option("--color", raw.color, "Colour the prefixes: auto (on a terminal), always or never")->type_name("WHEN");
  app.add_option("--stdin", raw.stdin_mode, "Who reads the standard input: rank0 or none")->type_name("WHO");
  app.add_option("--timeout", raw.timeout, "End the job after so many seconds")->type_name("SECONDS");
  app.add_option("--grace", raw.grace, "Seconds between SIGTERM and SIGKILL when the job is stopped (default 1)")
      ->type_name("SECONDS");
}

int read_ranks(const std::string& text) {
  if (text.empty()) refuse(concat("say how many ranks to start: -n N, with N from 1 to ", kMaxRanks));
  int value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < 1 || value > kMaxRanks) {
    refuse(concat("-n is '", text, "'; it must be a whole number from 1 to ", kMaxRanks));
  }
  return value;
}

std::chrono::milliseconds read_seconds(const char* option, const std::string& text, bool zero_allowed) {
  constexpr double kLongest = 1e9;
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool is_number = result.ec == std::errc() && result.ptr == end && std::isfinite(value);
  if (!is_number || value < 0 || value > kLongest || (value == 0 && !zero_allowed)) {
    refuse(concat(option, " is '", text, "'; it must be a number of seconds, ",
                  zero_allowed ? "zero or more" : "more than zero"));
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(value * 1000)));
}

template <class Enum>
Enum read_word(const char* option, const std::string& word, const std::map<std::string, Enum>& words) {
  const auto found = words.find(word);
  if (found != words.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  refuse(concat(option, " is '", word, "'; it must be one of ", join(names, ", ")));
}

std::pair<std::string, std::string> read_assignment(const std::string& text) {
  constexpr std::array kReserved = {"RANK",       "LOCAL_RANK",          "WORLD_SIZE",     "LOCAL_WORLD_SIZE",
                                    "GROUP_RANK", "GRADWIRE_RENDEZVOUS", "GRADWIRE_JOB_ID"};
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) refuse(concat("--env is '", text, "'; it must read NAME=VALUE"));
  std::string name = text.substr(0, equals);
  if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
    refuse(concat("--env cannot set ", name, ": gradwire-run gives it to each rank itself"));
  }
  return {std::move(name), text.substr(equals + 1)};
}

std::vector<std::string> read_command(std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest.front().starts_with('-')) {
    refuse(concat("unknown option '", rest.front(), "'; see gradwire-run --help"));
  }
  if (rest.empty() || rest.front().empty()) refuse("say which program to run: gradwire-run -n N program arguments...");
  return rest;
}

Options check(const RawOptions& raw, std::vector<std::string> rest) {
  Options options;
  options.command = read_command(std::move(rest));
  options.ranks = read_ranks(raw.ranks);
  for (const auto& text : raw.environment) options.extra_environment.push_back(read_assignment(text));
  if (!raw.timeout.empty()) options.timeout = read_seconds("--timeout", raw.timeout, false);
  options.grace = read_seconds("--grace", raw.grace, true);
  options.stdin_mode =
      read_word<StdinMode>("--stdin", raw.stdin_mode, {{"rank0", StdinMode::rank0}, {"none", StdinMode::none}});
  options.color = read_word<ColorMode>(
      "--color", raw.color,
      {{"auto", ColorMode::automatic}, {"always", ColorMode::always}, {"never", ColorMode::never}});
  options.log_folder = raw.log_folder;
  options.pin = raw.pin;
  options.prefix = !raw.no_prefix;
  return options;
}

}  // namespace

std::variant<Options, Information> parse_options(int argc, const char* const* argv) {
  CLI::App app(kDescription, "gradwire-run");
  RawOptions raw;
  declare(app, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Information{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Information{concat(version.what(), "\n")};
  } catch (const CLI::ParseError& error) {
    refuse(concat(error.what(), "; see gradwire-run --help"));
  }
  return check(raw, app.remaining());
}

}  // namespace gradwire::launch
