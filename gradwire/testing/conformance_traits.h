// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The traits of a class of groups for the conformance suite: how to run the ranks, and what a group promises.
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

// The promises of a group beyond broadcast, all_gather and a summing all_reduce, which every group needs. The suite
// tests each promise. An operation that is not promised must throw UnsupportedError before any communication.
struct Capabilities {
  // Operations.
  bool reduce = true;
  bool gather = true;
  bool scatter = true;
  bool reduce_scatter = true;
  bool all_to_all = true;
  bool point_to_point = true;  // send and recv, never behind collectives; monitored_barrier
  bool receive_any_source = true;
  bool duplicates = true;  // dup() makes a duplicate; false: dup() returns null
  bool splits = true;      // split()

  // Limits of the operations.
  std::vector<at::ScalarType> dtypes = {at::kHalf, at::kBFloat16,     at::kFloat,        at::kDouble,
                                        at::kChar, at::kByte,         at::kInt,          at::kLong,
                                        at::kBool, at::kComplexFloat, at::kComplexDouble};
  bool every_operation = true;    // all_reduce with every ReduceOp; false: with SUM only
  bool several_tensors = true;    // one call may take several tensors
  bool calls_in_order = true;     // asynchronous calls on one tensor take effect in the order of the calls
  bool waiting_callbacks = true;  // a callback of a future may start a collective and wait for it

  // Errors.
  bool aborts = true;      // abort() ends the calls of all ranks, with its reason
  bool deadlines = true;   // a call that misses its deadline throws TimeoutError; tested with point_to_point
  bool mismatches = true;  // when ranks make different calls, all of them get a MismatchError
};

// The part of a test that each rank runs with its group.
using GroupBody = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

// Specialize this template for your class of groups:
//   template <>
//   struct gradwire::testing::ConformanceTraits<MyGroup> {
//     static Capabilities capabilities();
//     static std::vector<int> worlds() { return {1, 2, 3}; }     // the numbers of ranks to test with
//     // Runs `body` on `size` ranks at the same time, each with its group, and returns when all ranks have ended. A
//     // failed expectation or an exception on any rank must fail the test, as in run_ranks_as_threads(). A test must
//     // not hang for ever: give the groups a deadline, or the test program a timeout.
//     static void run(int size, const GroupBody& body);
//   };
template <class Group>
struct ConformanceTraits;

// Runs each rank as a thread, and returns when all ranks have ended. Each rank calls `make` and then `body` on its
// thread. An exception of a rank becomes a test failure that names the rank, and aborts the rank's group, so that the
// other ranks end where the group can tell them.
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
