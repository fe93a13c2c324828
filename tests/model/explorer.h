// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs a program again and again until every choice in it has gone every way.
//
// A program asks choose() wherever it could go on in more than one way; the explorer answers from a list, and after
// each run changes the last answer that can be changed: a depth-first search that keeps no copies of states. reached()
// cuts a run short where it comes to a state that an earlier run went through, since all that can follow was seen then.
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
  bool insert(std::uint64_t hash);  // false: it was there
  std::size_t size() const noexcept { return size_; }

 private:
  std::vector<std::uint64_t> slots_;  // open addressing; 0 is free
  std::size_t size_ = 0;
};

struct Report {
  std::uint64_t executions = 0;
  std::uint64_t states = 0;  // different ones at which some thread was about to go on
  bool complete = false;     // every choice went every way
  std::string violation;     // what went wrong, or empty
  std::string trace;         // of the run in which it did
};

class Explorer {
 public:
  // Runs `program` until all is explored, until report() was called, or `max_executions` times.
  Report explore(const std::function<void(Explorer&)>& program, std::uint64_t max_executions);

  // One of 0 .. ways - 1.
  int choose(int ways);
  // A state of the program, as a hash of all that the rest of the run depends on. False: it was reached before; the
  // program is to return at once.
  bool reached(const std::function<std::uint64_t()>& hash);

  // A property does not hold; the program is to return.
  void violated(const std::string& what);
  bool has_violation() const noexcept { return !violation_.empty(); }
  // Whether this run is the second of a violation, which writes down what happens.
  bool tracing() const noexcept { return tracing_; }
  void trace(const std::string& line) { trace_ += line + '\n'; }

 private:
  struct Choice {
    int taken;
    int ways;
  };
  bool advance();  // to the next run; false: there is none

  std::vector<Choice> choices_;
  std::size_t position_ = 0;  // in choices_, of the run under way
  HashSet states_;
  bool tracing_ = false;
  std::string violation_;
  std::string trace_;
};

}  // namespace gradwire::model
