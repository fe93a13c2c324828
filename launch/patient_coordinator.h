// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic job on a disk that may be full for a while.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/membership/coordinator.h"
#include "gradwire/membership/roster.h"
#include "gradwire/store/store.h"

namespace gradwire::launch {

// A Coordinator that tries again when there is no room for its journal, and goes on where it was once there is. Until
// then nothing is decided, and the job trains on with the members that it has. For one thread.
class PatientCoordinator final {
 public:
  // As Coordinator::Coordinator(), and throws what that throws.
  PatientCoordinator(std::shared_ptr<Store> store, const membership::CoordinatorOptions& options);

  // As Coordinator::step(). Where there is no room for the journal, it tells (CoordinatorOptions::tell) what happened,
  // once until it can go on, and returns false; calls within the next second only wait.
  bool step(Milliseconds wait);
  // Handles events for ever, and calls `between` at least once a second.
  [[noreturn]] void run(const std::function<void()>& between);
  // As Coordinator::roster().
  const membership::Roster& roster() const noexcept { return coordinator_.roster(); }

 private:
  void tell(const std::string& sentence) const;

  const std::function<void(const std::string& sentence)> tell_;
  membership::Coordinator coordinator_;
  Deadline next_try_ = Deadline::after(Milliseconds(0));
  bool told_ = false;  // of a refusal, after which no event was handled
};

}  // namespace gradwire::launch
