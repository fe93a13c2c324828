// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The line of Python from which a call on a group is made, for the flight recorder.
#pragma once

#include <cstdint>
#include <optional>

#include "binding.h"
#include "gradwire/observe/flight_recorder.h"

namespace gradwire::python {

// While an object exists, calls of this thread are recorded with the innermost line of Python outside the packages
// gradwire and torch. Made and destroyed with the lock held; a guard before the one that releases the lock.
class CallerFrame {
 public:
  CallerFrame();
  CallerFrame(const CallerFrame&) = delete;
  CallerFrame& operator=(const CallerFrame&) = delete;

 private:
  std::optional<observe::CallerLine> line_;
};

// Learns where the two packages lie, and tells the flight recorder the lines of calls that come through torch. Called
// once, when the module is imported.
void follow_callers();

// The guard of a method that makes a call on a group.
using Calls = py::call_guard<CallerFrame, WithoutLock>;
// The same for a method that leads to a backward pass, whose errors are then Python's.
using CallsForAutograd = py::call_guard<CallerFrame, WithoutLock, PythonInBackward>;

}  // namespace gradwire::python
