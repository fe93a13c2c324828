// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The first error of a DDP object, and the groups that the error aborts.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Keeps the first reported error. That error aborts every group that carries gradients or DDP's own calls, so that the
// other ranks get the error too. Thread-safe. Only duplicate() waits for other ranks.
class Failure final {
 public:
  // `group`: the one of the DDP object.
  explicit Failure(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Returns a duplicate of `group`, or null when `group` cannot be duplicated. Collective. From now on a failure aborts
  // the duplicate. Without a duplicate a failure aborts `group` itself: the group's sequence of calls would differ from
  // that of the other ranks.
  std::shared_ptr<ProcessGroup> duplicate(const std::shared_ptr<ProcessGroup>& group) GRADWIRE_EXCLUDES(mutex_);

  // Reports `error`. `where` names the operation that failed, for the message to the other ranks. Does nothing after
  // the first call.
  void report(std::exception_ptr error, const std::string& where) GRADWIRE_EXCLUDES(mutex_);
  bool happened() const noexcept { return happened_; }
  // The first error. Null before report().
  std::exception_ptr first() const GRADWIRE_EXCLUDES(mutex_);
  // What a later pass throws; null before report(). The first error, where it is one of gradwire's. An exception of the
  // program (of its backward function, say) is quoted in an AbortedError: a program that catches its own exceptions and
  // goes on must not take this one for new.
  std::exception_ptr for_later_pass() const GRADWIRE_EXCLUDES(mutex_);
  // "kind: message" of the first error; empty while there is none.
  std::string description() const GRADWIRE_EXCLUDES(mutex_);

  // The sum of network_payload_bytes() over all these groups.
  std::uint64_t payload_bytes() const GRADWIRE_EXCLUDES(mutex_);

 private:
  struct Aborted {
    std::shared_ptr<ProcessGroup> group;
    bool has_own_ranks = false;  // the ranks of group_, with their numbers
  };

  int rank() const { return group_->rank(); }

  const std::shared_ptr<ProcessGroup> group_;
  std::atomic<bool> happened_{false};
  mutable Mutex mutex_;
  std::exception_ptr first_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Aborted> groups_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
