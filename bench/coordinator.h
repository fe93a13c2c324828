// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of all contestants, asks them to measure in turn, and collects what they say.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/worker.h"

namespace gradwire::bench {

// How the ranks of one contestant are started: one command for all (mpirun, threads), or one a rank.
struct Contestant {
  std::string name;
  std::vector<std::vector<std::string>>
      commands;  // argument lists; an environment of KEY=VALUE words may precede the program
  int ranks = 2;
};

// What a contestant said.
struct Reply {
  std::vector<double> samples;   // of rank 0, in microseconds
  std::size_t bytes = 0;         // what one run of rank 0 sent, or made; 0 from contestants that do not say
  std::size_t bytes_of_all = 0;  // of all ranks together
};

// What a rank said instead. All ranks have answered, so a contestant that lives on may be asked again.
class ContestantError : public std::runtime_error {
 public:
  ContestantError(const std::string& who, const std::string& text) : runtime_error(who + ": " + text), text_(text) {}
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

// A folder of its own for sockets and rendezvous files, gone with it.
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
  // Tells all workers to quit, waits for them, and kills those that do not.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Starts a contestant and waits until all its ranks are there. Throws std::runtime_error, with what they wrote, when
  // they do not come.
  void start(const Contestant& contestant);

  // Has all ranks of `contestant` measure. Throws ContestantError with a rank's error, std::runtime_error when a rank
  // is gone or silent.
  Reply measure(const std::string& contestant, const Measurement& what);

 private:
  struct Connection {
    int fd = -1;
    std::string pending;
  };
  std::string read_line(Connection& connection, const std::string& who);
  void accept_one(int seconds);

  int listener_ = -1;
  std::vector<pid_t> processes_;
  std::map<std::string, std::map<int, Connection>> connections_;
};

}  // namespace gradwire::bench
