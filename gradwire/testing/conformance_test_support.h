// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which groups of ours go through the conformance suite.
#pragma once

#include <ATen/Parallel.h>

#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/testing/conformance_traits.h"
#include "gradwire/testing/fault_injecting_group.h"
#include "tests/support/local_group.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing {

// Runs `body` on the ranks of a backend.
inline void run_backend(const std::string& backend, int size, const GroupBody& body) {
  const std::string engine = test_support::engine_of(backend);
  test_support::run_ranks(engine, size, [&](int rank, const std::shared_ptr<Store>& store) {
    if (engine != "threads") at::set_num_threads(1);
    body(test_support::make_named_group(backend, store, rank, size, std::chrono::minutes(2)));
  });
}

struct Shm {};
template <>
struct ConformanceTraits<Shm> {
  static Capabilities capabilities() { return {}; }
  static std::vector<int> worlds() { return {1, 2, 3}; }
  static void run(int size, const GroupBody& body) { run_backend("shm", size, body); }
};

// What docs/backends.md denies engines of c10d.
struct Gloo {};
template <>
struct ConformanceTraits<Gloo> {
  static Capabilities capabilities() {
    Capabilities can;
    can.waiting_callbacks = can.mismatches = can.calls_in_order = false;
    return can;
  }
  // None in a build without Gloo's headers.
  static std::vector<int> worlds() { return internal::gloo_is_built() ? std::vector<int>{1, 3} : std::vector<int>{}; }
  static void run(int size, const GroupBody& body) { run_backend("gloo", size, body); }
};

// Over UCX, flat, and between two hosts of shared memory. No worlds in a build without UCX.
struct Ucx {};
template <>
struct ConformanceTraits<Ucx> {
  static Capabilities capabilities() { return {}; }
  static std::vector<int> worlds() { return ucx_is_built() ? std::vector<int>{1, 3} : std::vector<int>{}; }
  static void run(int size, const GroupBody& body) { run_backend("ucx", size, body); }
};
struct HybridUcx {};
template <>
struct ConformanceTraits<HybridUcx> {
  static Capabilities capabilities() {
    Capabilities can;
    can.mismatches = false;  // as of any hybrid group
    return can;
  }
  static std::vector<int> worlds() { return ucx_is_built() ? std::vector<int>{4} : std::vector<int>{}; }
  static void run(int size, const GroupBody& body) { run_backend("hybrid/ucx", size, body); }
};

// Ours as a c10d backend, as a group of ours.
struct RoundTrip {};
template <>
struct ConformanceTraits<RoundTrip> {
  static Capabilities capabilities() {
    Capabilities can;
    can.waiting_callbacks = false;
    return can;
  }
  static std::vector<int> worlds() { return {1, 3}; }
  static void run(int size, const GroupBody& body) { run_backend("round_trip", size, body); }
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

// Two hosts, made of the threads with even and those with odd ranks.
template <>
struct ConformanceTraits<HybridGroup> {
  static Capabilities capabilities() {
    Capabilities can;
    can.mismatches = false;  // within a host; the other hosts get the abort that comes of it
    return can;
  }
  static std::vector<int> worlds() { return {4, 5}; }
  static void run(int size, const GroupBody& body) {
    run_backend("threads", size, [&](const std::shared_ptr<ProcessGroup>& group) {
      body(HybridGroup::make(group->dup(), group->split(group->rank() % 2)));
    });
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
