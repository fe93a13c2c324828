// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The log of events in the store of an elastic job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/membership/records.h"
#include "gradwire/store/store.h"

namespace gradwire::membership {

// Events have numbers from 1. An event is appended by one atomic operation, so a writer that is killed leaves no gap.
// Several writers may append at once. An event that is equal to one that another writer appends at the same moment is
// appended once. Throws what the store throws. Thread-safe.
class EventLog {
 public:
  // Shares the ownership of `store`, whose keys are the job's alone.
  explicit EventLog(std::shared_ptr<Store> store);

  // Appends `event` and returns its number.
  std::int64_t append(const Event& event);
  // Returns the text of event `number`. Waits up to `wait` for it.
  std::optional<std::string> read(std::int64_t number, Milliseconds wait);
  // The number of an event that exists, near the end of the log; 0 when there is none.
  std::int64_t noted_end();
  // Tells writers that the log reaches up to `number` at least, so that they need not look for its end from the
  // beginning. For the coordinator.
  void note_end(std::int64_t number);

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace gradwire::membership
