// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tables as the ranks of a job would have recorded them, for tests of the diagnosis.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"

namespace gradwire::observe::diagnosis_test {

inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr int kSteps = 6;

struct Made {
  CallKind kind = CallKind::all_reduce;
  std::uint64_t count = 1024;
  int line = 10;  // of the program
  std::uint8_t dtype = 2;
  int root = -1;
  int tag = -1;  // of a message
};

// A job of a program whose steps make three calls. The clock is a number that grows with every call.
class Job {
 public:
  explicit Job(int size) : ranks(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      at(rank).rank = rank;
      at(rank).world = size;
      at(rank).pid = 100 + rank;
      at(rank).wall_offset = 1000 * kSecond;
      at(rank).process.seen = true;
      at(rank).process.state = 'S';
      open(rank, "default", rank, size);
    }
    for (int step = 0; step < kSteps; ++step) {
      for (const Made& made : step_calls()) {
        for (int rank = 0; rank < size; ++rank) call(rank, made, Outcome::good);
      }
    }
  }

  static std::vector<Made> step_calls() {
    return {{}, {.count = 1, .line = 11}, {.kind = CallKind::broadcast, .count = 4, .line = 12, .root = 0}};
  }

  RankTable& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks.size()); }

  void open(int rank, const std::string& path, int rank_in_group, int group_size) {
    at(rank).groups.push_back({path, "shm", "", rank_in_group, group_size, false, 0, {}});
  }

  CallRow& call(int rank, const Made& made, Outcome outcome, std::size_t group = 0) {
    GroupTable& table = at(rank).groups.at(group);
    CallRow row;
    row.ticket = table.next_ticket++;
    row.kind = made.kind;
    std::uint64_t collectives = 0;
    for (const CallRow& each : table.calls) collectives += is_message(each.kind) ? 0 : 1;
    row.sequence = is_message(made.kind) ? 0 : collectives + 1;
    for (const CallRow& each : table.calls) row.refused += each.outcome == Outcome::refused ? 1 : 0;
    row.dtype = made.dtype;
    row.count = made.count;
    row.root = made.root;
    row.message_tag = made.tag;
    row.called = clock += 1000;
    row.outcome = outcome;
    if (outcome != Outcome::none) row.ended = clock + (outcome == Outcome::good ? 500 : kSecond);
    row.place.line = concat("train.py:", made.line, " (main)");
    table.calls.push_back(row);
    return table.calls.back();
  }

  // All ranks but `cause` make the call, which ends so.
  void others_call(int cause, Outcome outcome, const Made& made = {}) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != cause) call(rank, made, outcome);
    }
  }

  void end(int rank, int code, int order, bool by_signal = false) {
    at(rank).process.has_ended = true;
    at(rank).process.by_signal = by_signal;
    at(rank).process.code = code;
    at(rank).process.order = order;
  }

  // The job is over: all ranks but `cause` have reported an error and exited.
  void others_exit(int cause) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != cause) end(rank, 1, 1);
    }
  }

  Diagnosis over() const { return diagnose(ranks, {.is_over = true, .now = clock}); }
  Diagnosis stalled() const { return diagnose(ranks, {.now = clock + 10 * kSecond, .bound = kSecond}); }
  std::string words(const Diagnosis& diagnosis) const {
    return explain(diagnosis, ranks, {.is_over = true, .now = clock});
  }

  std::vector<RankTable> ranks;
  std::int64_t clock = kSecond;
};

// Runs `test(job, cause)` for jobs of 2 to 5 ranks and each rank as the cause, with the tables in any order.
template <class Test>
void for_each_cause(const Test& test) {
  for (int size = 2; size <= 5; ++size) {
    for (int cause = 0; cause < size; ++cause) {
      SCOPED_TRACE(concat("rank ", cause, " of ", size));
      Job job(size);
      test(job, cause);
    }
  }
}

inline void expect(const Diagnosis& found, FaultClass fault, std::vector<int> culprits) {
  EXPECT_EQ(name_of(found.fault), name_of(fault));
  EXPECT_EQ(found.culprits, culprits);
}

}  // namespace gradwire::observe::diagnosis_test
