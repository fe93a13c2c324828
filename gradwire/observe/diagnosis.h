// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which rank made a job fail or hang, in which call, and how: decided from what the flight recorders of the ranks held.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/observe/flight_table.h"

namespace gradwire::observe {

// What went wrong in a job.
enum class FaultClass {
  none,              // nothing is wrong, as far as the tables show
  killed,            // SIGKILL, SIGTERM, SIGINT, SIGHUP or SIGXCPU from somebody other than the launcher
  crashed,           // another signal
  out_of_memory,     // the kernel killed the rank for want of memory, or an allocation failed
  failed,            // the rank ended with an error of its own
  hook_exception,    // a hook of DDP threw
  other_collective,  // the rank called another collective than the others
  other_shape,       // the same collective over another number of elements
  other_dtype,
  other_root,
  skipped,   // the rank is further on in its program than the others: it left out a call
  left,      // the rank ended well, or closed the group, while others still called
  stopped,   // SIGSTOP, or a debugger
  slow,      // the rank computes, and has not come
  blocked,   // the rank waits in something that is no call of gradwire
  deadlock,  // ranks wait for each other in different groups
  network,   // the ranks run and made the same call over a network, but do not reach each other
  unknown,   // ranks wait, and the tables do not show for what
};

// "other collective"
std::string_view name_of(FaultClass fault) noexcept;
// What the user can do: one or two sentences.
std::string_view advice_for(FaultClass fault) noexcept;

// Why somebody asks.
struct Occasion {
  bool is_over = false;    // the job has ended; otherwise the ranks still run
  std::int64_t now = 0;    // nanoseconds of CLOCK_MONOTONIC
  std::int64_t bound = 0;  // while ranks run, a call is no trouble before it has waited so many nanoseconds
};

// What the tables of a job show.
struct Diagnosis {
  FaultClass fault = FaultClass::none;  // what the culprits did
  std::vector<int> culprits = {};    // in ascending order, in the numbers of the job; several where they did the same
  bool certain = true;               // false: ranks disagree, and the tables do not show which of them is wrong
  std::string group = {};            // the path of the group of `call`; empty where no call is concerned
  std::optional<CallRow> call = {};  // the call in which the other ranks waited, or that they made
  std::optional<CallRow> their_call = {};  // what a culprit called in its place
  std::string their_group = {};            // the path of the group of `their_call`
  std::string words = {};                  // the culprit's own error, where there is one
  std::string likely_cause = {};           // of a deadlock, say, in words: "rank 1 sent to rank 0 with tag 4; ..."
};

// Decides. `ranks` are the tables of a job, in any order; ranks may be missing. What ranks of an elastic job recorded
// is judged of one epoch: the last one of the rank whose end ended the job, else the newest. A pure function.
Diagnosis diagnose(const std::vector<RankTable>& ranks, const Occasion& occasion);

// The diagnosis in words, with the position of every rank and what to do: several lines without a prefix. An empty text
// where nothing is wrong. A pure function.
std::string explain(const Diagnosis& diagnosis, const std::vector<RankTable>& ranks, const Occasion& occasion);

// "all_reduce(1024 f32, iteration 3 bucket 1 stage 0)"
std::string describe(const CallRow& call);
// "train.py:41 (main)", or the function, or the module and the offset in it; empty where nothing is known.
std::string describe(const CallerPlace& place);

}  // namespace gradwire::observe
