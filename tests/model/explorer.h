// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs a program again and again until every outcome of every choice was tried.
//
// A program calls choose() wherever it can continue in more than one way. The explorer answers from a list, and after
// each run changes the last answer that can be changed: a depth-first search that keeps no copies of states. reached()
// ends a run early at a state that an earlier run reached, because that run explored everything that can follow.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gradwire::model {

// A set of 64-bit hashes.
class HashSet {
 public:
  HashSet() : slots_(1U << 12) {}
  bool insert(std::uint64_t hash);  // false: the set held this hash already
  std::size_t size() const noexcept { return size_; }

 private:
  std::vector<std::uint64_t> slots_;  // open addressing; 0 is free
  std::size_t size_ = 0;
};

struct Report {
  std::uint64_t executions = 0;
  std::uint64_t states = 0;  // number of different states in which some thread could continue
  bool complete = false;     // every outcome of every choice was tried
  std::string violation;     // the property that did not hold, or empty
  std::string trace;         // of the run with the violation
};

class Explorer {
 public:
  // Runs `program` until everything is explored, until report() was called, or `max_executions` times.
  Report explore(const std::function<void(Explorer&)>& program, std::uint64_t max_executions);

  // Returns one of 0 .. ways - 1.
  int choose(int ways);
  // Takes a state of the program, as a hash of everything that the rest of the run depends on. False: the state was
  // reached before, and the program must return at once.
  bool reached(const std::function<std::uint64_t()>& hash);

  // Reports that a property does not hold; the program must return then.
  void violated(const std::string& what);
  bool has_violation() const noexcept { return !violation_.empty(); }
  // Whether this run repeats a run with a violation, to record the trace.
  bool tracing() const noexcept { return tracing_; }
  void trace(const std::string& line) { trace_ += line + '\n'; }

 private:
  struct Choice {
    int taken;
    int ways;
  };
  bool advance();  // goes to the next run; false: there is none

  std::vector<Choice> choices_;
  std::size_t position_ = 0;  // in choices_, of the current run
  HashSet states_;
  bool tracing_ = false;
  std::string violation_;
  std::string trace_;
};

}  // namespace gradwire::model
