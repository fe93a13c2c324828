// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An engine for tensors on the fake device, for ranks that are threads. It behaves like NCCL, also where a call fails
// after it has returned.
#pragma once

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/support/fake_device.h"
#include "tests/support/local_group.h"

namespace gradwire::testing {

// What goes wrong with the kernels of the engines that share it. Thread-safe.
struct FakeFaults {
  // True: a kernel ends only when its engine is aborted, and ends as if all was well, without a result. The call
  // returns at once and waits for no other rank.
  std::atomic<bool> hang{false};
  // The rank whose kernels fail: they end as if all was well, without a result, and getError() tells. -1: none.
  std::atomic<int> failing_rank{-1};
};

// all_reduce (SUM), broadcast, all_gather_base, all_to_all_base in equal parts. An asynchronous call runs on the
// engine's own stream, between events. A synchronous call runs on the caller's stream, and returns no Work. The engines
// of all ranks of a group share a `meeting`. `faults` may be null.
c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size,
                                                   std::shared_ptr<FakeFaults> faults = nullptr);

}  // namespace gradwire::testing
