// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The random program that the ranks of a fault run until something goes wrong. Every result is checked.
#pragma once

#include <memory>
#include <vector>

#include "tests/chaos/stage.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/random_calls.h"

namespace gradwire::testing {

// One rank's side. All ranks draw the same calls: collectives of all kinds, staged and in place, on the first channel
// and on duplicates; messages; memory; uses of the store; forked children. Errors of the group leave the calls.
class Program {
 public:
  // What a rank is doing while it sends and receives.
  static constexpr const char* kMessages = "messages";

  // `context` has joined. Where ranks are threads nothing is forked.
  Program(RankContext& context, Stage& stage, std::uint64_t seed);

  // The next call. `stage` says which it is.
  void make_call();

  // The parts, for those who choose themselves.
  Channel& any_channel();
  void exchange();   // a message to the next rank and one from the one before
  void duplicate();  // one channel more, or none but the first again
  void allocate();   // new memory for placed()
  void placed();     // a collective on buffers that lie in shared memory, all or some

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

// Runs `body` in a forked child of this rank and waits for its end; false when the child does not come to one in time
// (the child is killed then). `body` uses nothing but what a forked child may use; its failures reach the test.
bool run_forked(const std::function<void()>& body);

// What a forked child finds where it uses its parent's group: InvalidArgument.
void expect_refused_in_child(Channel& channel);

}  // namespace gradwire::testing
