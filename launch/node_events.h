// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a launcher of a job over several hosts hears of the job.
#pragma once

#include <string>
#include <variant>

#include "launch/node_records.h"

namespace gradwire::launch {

// The job ended, or never began, for this launcher; `what` states why.
struct Failure {
  int exit_code = 0;
  std::string what;
};

// A message for the user. Changes nothing.
struct Notice {
  std::string what;
};

// An event of the job. Events come in this order: a Plan, its Verdict, after a Verdict `restart` the next Plan, and so
// on. A Failure may come at any time and is the last event. Notices may come at any time.
using NodeEvent = std::variant<Plan, Verdict, Failure, Notice>;

}  // namespace gradwire::launch
