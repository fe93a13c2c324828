// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/failure_internal.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/network_payload.h"
#include "gradwire/process_group/outer_ranks_internal.h"

namespace gradwire::internal {
std::shared_ptr<ProcessGroup> Failure::duplicate(const std::shared_ptr<ProcessGroup>& group) {
  std::shared_ptr<ProcessGroup> made = group->dup();
  MutexLock lock(mutex_);
  groups_.push_back({made != nullptr ? made : group, group == group_});
  return made;
}

void Failure::report(std::exception_ptr error, const std::string& where) {
  std::vector<Aborted> groups;
  {
    MutexLock lock(mutex_);
    if (first_ != nullptr) return;
    first_ = error;
    groups = groups_;
    happened_ = true;  // here, so that it holds when a second report() returns
  }
  const std::string reason =
      concat("DistributedDataParallel on rank ", rank(), " failed in ", where, ": ", describe(error));
  log::error(reason);
  // The ranks that `error` names may be those of another group, which a hook or the backward pass used. They are this
  // group's where one of its duplicates has ended with the same ranks.
  const std::vector<int> peers = peers_of(error);
  std::exception_ptr of_own_ranks;
  for (const auto& [group, has_own_ranks] : groups) {
    const std::exception_ptr end = has_own_ranks && !peers.empty() ? end_of(*group) : nullptr;
    if (end != nullptr && peers_of(end) == peers) of_own_ranks = end;
  }
  for (const auto& [group, has_own_ranks] : groups) {
    if (has_own_ranks && of_own_ranks != nullptr) {
      abort_because(*group, of_own_ranks, reason);
    } else {
      group->abort(reason);
    }
  }
}

std::exception_ptr Failure::first() const {
  MutexLock lock(mutex_);
  return first_;
}

std::exception_ptr Failure::for_later_pass() const {
  const std::exception_ptr error = first();
  if (error == nullptr) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return error;
  } catch (...) {
    // Python's exceptions bring their traceback, in more lines.
    const std::string what = describe(error);
    return std::make_exception_ptr(AbortedError(concat(
        "DistributedDataParallel on rank ", rank(), ": an earlier pass failed (", what.substr(0, what.find('\n')),
        "), and the object cannot be used any more; make a new one, on all ranks")));
  }
}

std::string Failure::description() const {
  const std::exception_ptr error = first();
  return error == nullptr ? std::string() : describe(error);
}

std::uint64_t Failure::payload_bytes() const {
  MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  // Hooks that run between hosts only are counted between hosts.
  for (const Aborted& each : groups_) bytes += network_payload_bytes(*each.group);
  return bytes;
}

}  // namespace gradwire::internal
