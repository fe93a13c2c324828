// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The command line of gradwire-run.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gradwire::launch {

inline constexpr int kMaxRanks = 64;

enum class StdinMode { rank0, none };
enum class ColorMode { automatic, always, never };

struct Options {
  int ranks = 0;                     // 1 to kMaxRanks
  std::vector<std::string> command;  // the program and its arguments; never empty
  std::vector<std::pair<std::string, std::string>> extra_environment;
  std::optional<std::chrono::milliseconds> timeout;           // the whole job's
  std::chrono::milliseconds grace = std::chrono::seconds(1);  // between SIGTERM and SIGKILL
  std::string log_folder;                                     // empty: output goes to the launcher's own
  StdinMode stdin_mode = StdinMode::rank0;
  ColorMode color = ColorMode::automatic;
  bool pin = false;
  bool prefix = true;
};

// --help or --version: what to print on stdout before leaving with 0.
struct Information {
  std::string text;
};

// Reads the command line. Everything behind the program's name belongs to the program. Throws LaunchError(kUsageExit)
// with one sentence that says what is wrong.
std::variant<Options, Information> parse_options(int argc, const char* const* argv);

}  // namespace gradwire::launch
