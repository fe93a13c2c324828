// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of all contestants, asks them to measure in turn, and collects their replies.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/worker.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::bench {

// How to start the ranks of one contestant: one command for all ranks (mpirun, threads), or one for each rank.
struct Contestant {
  std::string name;
  // Argument lists; an environment of KEY=VALUE words may precede the program.
  std::vector<std::vector<std::string>> commands;
  int ranks = 2;
};

// The reply of a contestant to a measurement.
struct Reply {
  std::vector<double> samples;   // of rank 0, in microseconds
  std::vector<double> slowest;   // by sample: the longest of all ranks that told their samples
  std::size_t bytes = 0;         // that one run of rank 0 sent or made; 0: the contestant does not report bytes
  std::size_t bytes_of_all = 0;  // the same for all ranks together
};

// The error that a rank replied. All ranks have answered, so a contestant whose processes still run can measure again.
class ContestantError : public std::runtime_error {
 public:
  ContestantError(const std::string& who, const std::string& text) : runtime_error(who + ": " + text), text_(text) {}
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

// A new folder for sockets and rendezvous files; the destructor removes it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Coordinator {
 public:
  // Listens at `socket_path`.
  explicit Coordinator(const std::string& socket_path);
  // Tells all workers to quit, waits for them, and kills the workers that do not quit.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Starts a contestant, and waits until all its ranks have connected. When they do not connect, throws a
  // std::runtime_error with their output.
  void start(const Contestant& contestant);

  // Lets all ranks of `contestant` measure. Throws ContestantError with a rank's error, and std::runtime_error when a
  // rank has ended or does not answer.
  Reply measure(const std::string& contestant, const Measurement& what);

 private:
  struct Connection {
    UniqueFd fd;
    std::string pending;
  };
  std::string read_line(Connection& connection, const std::string& who);
  void accept_one(int seconds);

  UniqueFd listener_;
  std::vector<pid_t> processes_;
  std::map<std::string, std::map<int, Connection>> connections_;
};

}  // namespace gradwire::bench
