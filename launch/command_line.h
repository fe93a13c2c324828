// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The options of gradwire-run as they are written, and what --help says of them.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace gradwire::launch {

// What the user wrote, before it is checked. Numbers are read here and not by CLI11, so that the sentences are ours.
struct RawOptions {
  std::string ranks;
  std::string nodes;
  std::string node;
  std::string rendezvous;
  std::string job_id;
  std::string master_port;
  std::string rendezvous_timeout = "300";
  std::string heartbeat_timeout = "10";
  std::string max_restarts = "0";
  std::string hosts;
  std::string shell;
  std::string secret_file;
  bool end_with_stdin = false;
  std::string timeout;
  std::string stall;
  std::string flight_folder;
  std::string record_folder;
  bool watch = false;
  bool report_steps = false;
  std::string watch_port;
  std::string grace = "1";
  std::string stdin_mode = "rank0";
  std::string color = "auto";
  std::vector<std::string> environment;
  std::string log_folder;
  std::string elastic;
  std::string join;
  std::string serve;
  std::string deaths_per_minute;
  std::string membership_log;
  std::string replay;
  std::string drop_slow;
  bool replace_stalled = false;
  bool pin = false;
  bool no_prefix = false;
  bool info = false;
};

// Says what the program is and which options it has. Parsing writes them into `raw`.
void declare(CLI::App& app, RawOptions& raw);

}  // namespace gradwire::launch
