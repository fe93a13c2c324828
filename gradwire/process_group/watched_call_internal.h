// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What looks on at calls and waits: the trace points, the profiler of PyTorch, and the thread's WaitClock.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "gradwire/base/trace.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/wait_clock_internal.h"

namespace gradwire::internal {

// A range in a profile of PyTorch's, which lasts as long as the object. Without a profiler the object costs a look at
// the version of the list of callbacks and at an empty list of the thread.
class ProfiledRange final {
 public:
  ProfiledRange() = default;  // none
  // `name()` returns the name, and is called where a profiler looks.
  template <class Name>
  explicit ProfiledRange(const Name& name) {
    auto watched = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!watched) return;
    range_.emplace(*std::move(watched));
    range_->before(name());
  }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;

 private:
  std::optional<at::RecordFunction> range_;
};

// A call on a group, from its begin to its return or its error: the points group.call and group.return, and a range
// "gradwire:NAME" in a profile. Without a sink and without a profiler the object costs two looks.
class WatchedCall final {
 public:
  // `operation` is a literal. `bytes`: of the call's tensors; `sent`: what the call adds to payload_bytes().
  WatchedCall(const char* operation, observe::CallKind kind, int rank, std::uint64_t bytes, std::uint64_t sent);
  ~WatchedCall() { trace::point("group.return", rank_); }
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  const int rank_;
  const ProfiledRange range_;
  const WaitsForRanks waits_;
};

// While it exists, this thread waits for a Work, which stands for the call `flight`: the points work.wait and
// work.waited, and a note in the flight recorder.
class WatchedWait final {
 public:
  explicit WatchedWait(observe::FlightCall flight) noexcept : noted_(flight) { trace::point("work.wait"); }
  ~WatchedWait() { trace::point("work.waited"); }
  WatchedWait(const WatchedWait&) = delete;
  WatchedWait& operator=(const WatchedWait&) = delete;

 private:
  const observe::FlightWait noted_;
  const WaitsForRanks waits_;
};

}  // namespace gradwire::internal
