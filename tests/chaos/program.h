// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The random program that the ranks run until the fault. Every result is checked.
#pragma once

#include <memory>
#include <vector>

#include "tests/chaos/stage.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/random_calls.h"

namespace gradwire::testing {

// The program of one rank. All ranks draw the same calls: collectives of all kinds, staged and in place, on the first
// channel and on duplicates; messages; memory; uses of the store; forked children. A call throws the group's errors.
class Program {
 public:
  // The texts that name the rank's current action while it needs some of the other ranks, not all.
  static constexpr const char* kMessages = "messages";
  static constexpr const char* kSplit = "split";

  // `context` has joined. If ranks are threads, the program forks no children.
  Program(RankContext& context, Stage& stage, std::uint64_t seed);

  // Makes the next call, and writes its name into `stage`.
  void make_call();

  // The single calls, for a class of faults that chooses its calls itself.
  Channel& any_channel();
  void exchange();   // a message to the next rank and a message from the previous rank
  void duplicate();  // adds a channel, or destroys all channels but the first
  void split();      // a group of the even ranks and one of the odd ranks, used and destroyed
  void allocate();   // new memory for placed()
  void placed();     // a collective on buffers of which all or some lie in shared memory

  Random& random() { return random_; }
  std::vector<std::unique_ptr<Channel>>& duplicates() { return duplicates_; }

 private:
  void collective();
  void use_store();
  void fork_child();
  void note(const char* what);
  std::size_t ranks() const { return static_cast<std::size_t>(context_.size()); }

  RankContext& context_;
  Stage& stage_;
  Random random_;
  std::uint32_t calls_ = 0;
  std::vector<std::unique_ptr<Channel>> duplicates_;
  std::unique_ptr<Arena> arena_;
};

// Runs `body` in a forked child of this rank and waits for the child's end. Returns false when the child does not end
// in time; the child is killed then. `body` uses only what a forked child may use. Its failures reach the test.
bool run_forked(const std::function<void()>& body);

// Checks, in a forked child, that a use of the parent's group throws InvalidArgument.
void expect_refused_in_child(Channel& channel);

}  // namespace gradwire::testing
