// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/patient_coordinator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kTryAgain{1000};

}  // namespace

PatientCoordinator::PatientCoordinator(std::shared_ptr<Store> store, const membership::CoordinatorOptions& options)
    : tell_(options.tell), coordinator_(std::move(store), options) {}

bool PatientCoordinator::step(Milliseconds wait) {
  if (!next_try_.expired()) {
    std::this_thread::sleep_for(std::min(wait, next_try_.remaining()));
    return false;
  }
  try {
    if (!coordinator_.step(wait)) return false;
  } catch (const StoreError& problem) {
    if (!coordinator_.has_full_journal()) throw;
    next_try_ = Deadline::after(kTryAgain);
    if (std::exchange(told_, true)) return false;
    tell(concat(
        "the coordinator of the elastic job cannot go on: ", problem.what(),
        "; it tries again each second, and the job trains on meanwhile, but no rank can come or go; make room on "
        "that disk"));
    return false;
  }
  if (std::exchange(told_, false)) tell("the coordinator of the elastic job goes on");
  return true;
}

void PatientCoordinator::run(const std::function<void()>& between) {
  for (;;) {
    step(coordinator_.next_wait());
    between();
  }
}

void PatientCoordinator::tell(const std::string& sentence) const {
  if (tell_) tell_(sentence);
}

}  // namespace gradwire::launch
