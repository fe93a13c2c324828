// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which groups of ours go through the conformance suite.
#pragma once

#include <ATen/Parallel.h>

#include "gradwire/process_group/init.h"
#include "gradwire/testing/conformance_traits.h"
#include "gradwire/testing/fault_injecting_group.h"
#include "tests/support/local_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing {

// Runs `body` on the ranks of a backend.
inline void run_backend(const std::string& backend, int size, const GroupBody& body) {
  test_support::run_ranks(backend, size, [&](int rank, const std::shared_ptr<Store>& store) {
    if (backend != "threads") at::set_num_threads(1);
    body(make_process_group(backend, store, rank, size, std::chrono::minutes(2)));
  });
}

struct Shm {};
template <>
struct ConformanceTraits<Shm> {
  static Capabilities capabilities() { return {}; }
  static std::vector<int> worlds() { return {1, 2, 3}; }
  static void run(int size, const GroupBody& body) { run_backend("shm", size, body); }
};

struct Threads {};
template <>
struct ConformanceTraits<Threads> {
  static Capabilities capabilities() { return {}; }
  static std::vector<int> worlds() { return {1, 2, 3, 5}; }
  static void run(int size, const GroupBody& body) { run_backend("threads", size, body); }
};

template <>
struct ConformanceTraits<FaultInjectingGroup> {
  static Capabilities capabilities() { return {}; }
  static std::vector<int> worlds() { return {2}; }
  static void run(int size, const GroupBody& body) {
    run_backend("threads", size, [&](const auto& group) { body(std::make_shared<FaultInjectingGroup>(group)); });
  }
};

// A user's, with broadcast, all_gather and a summing all_reduce of one tensor, and a Work of its own.
template <>
struct ConformanceTraits<LocalGroup> {
  static Capabilities capabilities() {
    Capabilities can;
    can.reduce = can.gather = can.scatter = can.reduce_scatter = can.all_to_all = false;
    can.point_to_point = can.receive_any_source = can.duplicates = can.splits = false;
    can.every_operation = can.several_tensors = can.mismatches = false;
    return can;
  }
  static std::vector<int> worlds() { return {1, 3}; }
  static void run(int size, const GroupBody& body) {
    const auto meeting = std::make_shared<Meeting>(size);
    run_ranks_as_threads(
        size, [&](int rank) { return std::make_shared<LocalGroup>(meeting, rank, size); }, body);
  }
};

}  // namespace gradwire::testing
