// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ranks' calls of the step protocol in the model, and the conditions that must hold in every order. The calls are
// those of SharedChannel, reduced to the steps and to the accesses to memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/explorer.h"
#include "tests/model/mutant.h"
#include "tests/model/scheduler.h"

namespace gradwire::model {

enum class CallKind {
  barrier,  // entry alone
  direct,   // entry, every rank writes into every rank's buffer, exit
  staged,   // entry and a further step, two windows through the staging areas
  pieces,   // the same out of rank 0; the others may take the second window when rank 0 says that it is there
  vote,     // entry, every rank writes a value, a step, all ranks read the values, a step
};

struct Scenario {
  std::string name;
  int ranks = 2;
  std::vector<CallKind> calls;
  ScheduleOptions options = {};
  // The fault, and the rank with the fault; -1: no such fault.
  int aborts = -1;     // a second thread of this rank calls abort()
  int deadline = -1;   // the deadline of this rank passes while it waits
  int disagrees = -1;  // this rank makes a different call
  int leaves = -1;     // this rank makes one call less
};

// Runs the scenario in every order, or `max_executions` times. Reports a violation unless these conditions hold:
//   no rank sleeps for ever;
//   no memory is read before it is written, written while another rank reads it, or touched after its owner left the
//   call;
//   a rank fails only because of the fault, and its error names the fault;
//   when one rank ended a call without an error, another rank fails in this call only because of a deadline or an
//   abort; the first reason stays.
Report explore(const Scenario& scenario, Mutation& mutation, std::uint64_t max_executions);

// The scenarios that run for every change, which are small enough to be complete, and the scenarios that take minutes.
std::vector<Scenario> fast_scenarios();
std::vector<Scenario> slow_scenarios();

}  // namespace gradwire::model
