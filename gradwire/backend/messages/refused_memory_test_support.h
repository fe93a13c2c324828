// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Allocations that fail when a test says so, in a program that links refused_memory_test_support.cc.
#pragma once

#include <utility>

namespace gradwire::messages {

// How many allocations succeed before one throws std::bad_alloc; negative: all succeed. Counts down, and is negative
// after the one that failed.
extern thread_local long allocations_before_a_refusal;

// While it lives no allocation is refused: for what the test itself keeps.
class Granted {
 public:
  Granted() : before_(std::exchange(allocations_before_a_refusal, -1)) {}
  ~Granted() { allocations_before_a_refusal = before_; }
  Granted(const Granted&) = delete;
  Granted& operator=(const Granted&) = delete;

 private:
  long before_;
};

}  // namespace gradwire::messages
