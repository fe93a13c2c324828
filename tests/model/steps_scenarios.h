// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What ranks do with the step protocol in the model, and what must hold whatever the order: the calls of SharedChannel
// reduced to who meets when and who touches which memory.
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
  vote,     // entry, every rank says something, a step, all read it, a step
};

struct Scenario {
  std::string name;
  int ranks = 2;
  std::vector<CallKind> calls;
  ScheduleOptions options = {};
  // What goes wrong, if anything, and on which rank.
  int aborts = -1;     // a second thread of that rank ends its part
  int deadline = -1;   // its deadline passes while it waits
  int disagrees = -1;  // it calls something else
  int leaves = -1;     // it makes one call less
};

// Runs it in every way, or `max_executions` times. Violations:
//   nobody sleeps for ever;
//   no memory is read before it is written, written while another reads, or touched after its owner has it back;
//   a rank fails only for what went wrong, and names that;
//   when one rank ended a call well, another fails it only by its own or another's deadline or abort;
//   the first reason stays.
Report explore(const Scenario& scenario, Mutation& mutation, std::uint64_t max_executions);

// Those that every change must pass, small enough to be complete, and those that need minutes.
std::vector<Scenario> fast_scenarios();
std::vector<Scenario> slow_scenarios();

}  // namespace gradwire::model
