// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/patient_store.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::membership {
namespace {

constexpr Milliseconds kBetweenTries{50};
// A store that answers may have come back only after the call had failed. When that happens so often, the store has
// refused the call.
constexpr int kRefusals = 3;

}  // namespace

PatientStore::PatientStore(std::shared_ptr<Store> store, Milliseconds patience)
    : ForwardingStore(std::move(store)), patience_(patience) {
  if (patience_.count() < 0)
    throw InvalidArgument(concat("PatientStore: a patience of ", patience_.count(), " ms; it must not be negative"));
}

bool PatientStore::answers() const noexcept {
  try {
    underlying()->num_keys();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void PatientStore::forward(const std::function<void(Store& store)>& call) {
  std::optional<Deadline> deadline;
  for (int refusals = 0;;) {
    try {
      return call(*underlying());
    } catch (const StoreError& problem) {
      if (!deadline) deadline = Deadline::after(patience_);
      if (answers() && ++refusals == kRefusals) throw;
      if (deadline->expired()) {
        throw StoreError(concat(problem.what(), "; the store did not come back within ",
                                static_cast<double>(patience_.count()) / 1000, " s"));
      }
    }
    throw_if_interrupted("waiting for the store of the elastic job to come back");
    std::this_thread::sleep_for(std::min(kBetweenTries, deadline->remaining()));
  }
}

std::shared_ptr<Store> PatientStore::clone() {
  return std::make_shared<PatientStore>(underlying()->clone(), patience_);
}

std::shared_ptr<Store> without_patience(const std::shared_ptr<Store>& store) {
  const auto patient = std::dynamic_pointer_cast<PatientStore>(store);
  return patient == nullptr ? store : patient->underlying();
}

}  // namespace gradwire::membership
