// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of one group, one after another, as Works.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "gradwire/process_group/executor_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {

// Turns the bodies of a group's calls into Works. A body blocks until this rank's part is done, and throws when that
// fails. Bodies run in the order in which they were handed over; see Executor for where.
//
// Thread-safe. Works hold no reference to this object.
class OrderedCalls {
 public:
  using Body = std::function<void()>;

  explicit OrderedCalls(std::string thread_name);

  // Runs `body` in its turn; a completed Work of `outputs`, or a failed one. Null when closed.
  std::shared_ptr<Work> run(Outputs outputs, const Body& body);

  // Hands `body` to the worker, which carries the caller's ThreadLocalState; a Work of `outputs` that keeps `owner`
  // alive. `what` is for the log. Null when closed.
  std::shared_ptr<Work> post(std::string what, Outputs outputs, Body body, std::shared_ptr<void> owner);

  // Runs `body` in its turn and throws what it throws. False when closed.
  bool in_turn(const Body& body);

  // Whether a posted body has not ended.
  bool under_way() const noexcept { return under_way_->load() > 0; }

  // As Executor's.
  void close() { executor_.close(); }
  void finish() { executor_.finish(); }

 private:
  const std::shared_ptr<std::atomic<int>> under_way_;
  Executor executor_;
};

}  // namespace gradwire::internal
