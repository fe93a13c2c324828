// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of a DDP object: its first error, and the groups that end with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The first error that is reported stays, and aborts every group that carries gradients or DDP's own calls, so that the
// other ranks hear of it. Thread-safe; no call waits for another rank but duplicate().
class Failure final {
 public:
  explicit Failure(int rank) : rank_(rank) {}

  // Collective: a duplicate of `group`, null where it has none. From now on a failure aborts the duplicate; without one
  // the group itself, whose sequence would be out of step with the other ranks'.
  std::shared_ptr<ProcessGroup> duplicate(const std::shared_ptr<ProcessGroup>& group) GRADWIRE_EXCLUDES(mutex_);

  // `where`: what failed, for the message that the other ranks get. Does nothing after the first call.
  void report(std::exception_ptr error, const std::string& where) GRADWIRE_EXCLUDES(mutex_);
  bool happened() const noexcept { return happened_; }
  // Null before report().
  std::exception_ptr first() const GRADWIRE_EXCLUDES(mutex_);
  // "kind: message" of the first error; empty while there is none.
  std::string description() const GRADWIRE_EXCLUDES(mutex_);

  // network_payload_bytes() of all these groups together.
  std::uint64_t payload_bytes() const GRADWIRE_EXCLUDES(mutex_);

 private:
  const int rank_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  std::exception_ptr first_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ProcessGroup>> groups_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
