// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the conformance suite has to be told of a group: how its ranks are run, and what it promises.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::testing {

// What a group promises beside broadcast, all_gather and a summing all_reduce, which every group needs. What is
// promised is tested; an operation that is not must throw UnsupportedError, before it has communicated.
struct Capabilities {
  // Operations.
  bool reduce = true;
  bool gather = true;
  bool scatter = true;
  bool reduce_scatter = true;
  bool all_to_all = true;
  bool point_to_point = true;  // send and recv, never behind collectives; monitored_barrier
  bool receive_any_source = true;
  bool duplicates = true;  // dup(); without, it returns null
  bool splits = true;

  // How far they go.
  std::vector<at::ScalarType> dtypes = {at::kHalf, at::kBFloat16,     at::kFloat,        at::kDouble,
                                        at::kChar, at::kByte,         at::kInt,          at::kLong,
                                        at::kBool, at::kComplexFloat, at::kComplexDouble};
  bool every_operation = true;    // all_reduce: products, extremes, averages, bits; else SUM alone
  bool several_tensors = true;    // in one call
  bool calls_in_order = true;     // calls under way on one tensor take effect in the order they were made
  bool waiting_callbacks = true;  // a callback of a future may start a collective and wait for it

  // Errors.
  bool aborts = true;      // abort() ends the calls of all ranks, with its reason
  bool deadlines = true;   // a call whose time is over throws TimeoutError
  bool mismatches = true;  // ranks that call different things get a MismatchError, all of them
};

using GroupBody = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

// Specialize it for your class of groups:
//   template <>
//   struct gradwire::testing::ConformanceTraits<MyGroup> {
//     static Capabilities capabilities();
//     static std::vector<int> worlds() { return {1, 2, 3}; }     // the numbers of ranks to test with
//     // Runs `body` on `size` ranks at the same time, each with its group, and returns when all have ended. Whatever a
//     // rank expects in vain or throws must fail the test: run_ranks_as_threads() does that. A group that hangs must
//     not
//     // hang for ever: give it a deadline, or the test program a timeout.
//     static void run(int size, const GroupBody& body);
//   };
template <class Group>
struct ConformanceTraits;

// Ranks as threads. `make` is called on the rank's thread. What a rank throws is a failure of the test that names it,
// and aborts the rank's group, so that the others learn of it where the group can tell them.
inline void run_ranks_as_threads(int size, const std::function<std::shared_ptr<ProcessGroup>(int rank)>& make,
                                 const GroupBody& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::shared_ptr<ProcessGroup> group;
      try {
        group = make(rank);
        body(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " of " << size << ": " << error.what();
        if (group != nullptr) group->abort(concat("rank ", rank, ": ", error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradwire::testing
