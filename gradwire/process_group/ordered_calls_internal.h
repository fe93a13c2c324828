// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of one group, one after another, as Works.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/process.h"
#include "gradwire/process_group/executor_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {

// Why a group was aborted whose user was interrupted.
constexpr const char* kInterrupted = "interrupted on this rank";

// Throws the AbortedError of a shutdown() that was interrupted, and has ended all the same.
[[noreturn]] void throw_interrupted_shutdown(const ProcessGroup& group);

// Makes Works from the bodies of a group's calls. A body blocks until this rank's part is done, and throws when that
// fails. A body is given the call's outputs. Bodies run in the order of the calls of run(), post() and in_turn(), on
// the thread that Executor chooses.
//
// Thread-safe. Works hold no reference to this object.
class OrderedCalls {
 public:
  using Body = std::function<void(const Outputs& outputs)>;
  // Ends the group's calls with errors, soon.
  using Abort = std::function<void()>;

  explicit OrderedCalls(std::string thread_name);

  // Runs `body` in its turn. Returns a Work that has ended, with `outputs` or with the body's error; null when closed.
  // When the thread is interrupted (gradwire/base/interrupt.h) while it waits for its turn, calls `abort`, and the
  // error is an AbortedError.
  std::shared_ptr<Work> run(Outputs outputs, const Body& body, const Abort& abort);

  // Hands `body` to the worker, which runs it with the caller's ThreadLocalState; a thread that waits for the Work may
  // run it instead. Returns a Work of `outputs` that
  // keeps `owner` alive; null when closed. `operation`, a literal, names the call in the log.
  std::shared_ptr<Work> post(const char* operation, Outputs outputs, Body body, std::shared_ptr<void> owner,
                             Executor::Start start = Executor::Start::now);

  // Runs `body` in its turn, and throws what the body throws. Returns false when closed. An interruption is as in
  // run().
  bool in_turn(const std::function<void()>& body, const Abort& abort);

  // Runs `copy`, which must not throw, after the bodies that were posted before, and before those that come: at once
  // where none is under way. `owner` lives until then.
  void before_next(std::function<void()> copy, std::shared_ptr<void> owner);

  // Whether a posted body has not ended.
  bool under_way() const noexcept { return under_way_->load() > 0; }

  // As Executor's. finish() with `abort` calls it when the thread is interrupted; returns whether that was so.
  void close() { executor_.close(); }
  void finish() { executor_.finish(); }
  bool finish(const Abort& abort);

 private:
  const OwnerProcess process_;
  const std::shared_ptr<std::atomic<int>> under_way_;
  Executor executor_;
};

}  // namespace gradwire::internal
