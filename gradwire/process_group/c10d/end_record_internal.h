// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Why a group over an engine of c10d has ended: an engine reports that a connection broke, but not which rank is at
// fault.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::internal {

// Holds which process each rank of a group is and, in the store, the group's first end: a rank's abort(), or a death
// that a rank of the same host saw. Thread-safe. Calls under way hold the record, which may therefore outlive the
// group.
class EndRecord {
 public:
  // `processes` has process_identity() of every rank; where it is empty, this rank writes its own into the store, and
  // reads those of the other ranks when there is an error. `store` may be null: then only `processes` are known.
  EndRecord(std::shared_ptr<Store> store, int rank, int size, std::vector<std::string> processes);

  // process_identity() by rank; empty where the identities are not known before an error.
  const std::vector<std::string>& processes() const noexcept { return processes_; }

  // Tells the other ranks that this rank aborts, unless the record has an end already. Never throws.
  void say_aborted(const std::string& reason) noexcept;

  // Returns the end that another rank has told, as a PeerError whose text begins with `what`; null where no rank has
  // told one, or this rank did. `when`: what this rank did meanwhile, for the text.
  std::exception_ptr told(const std::string& what, const std::string& when) const;

  // Returns `error` of an engine as one of gradwire's errors (error_from_c10d), whose text begins with `what`. A
  // PeerError without peers, or a TimeoutError, becomes a PeerError that names the ranks that died or aborted, where
  // these are known: deaths on this host by a look at the processes, others from the store. After a PeerError, waits up
  // to a second for this. Where the ranks stay unknown, the error is as the engine reported it. A PeerError with peers
  // gets only the reason of a rank that aborted.
  std::exception_ptr explain(const std::string& what, const std::exception_ptr& error, bool at_call);

  // Whether the process of `rank` is known, and has certainly ended. Throws what the store throws.
  bool has_died(int rank) const;

 private:
  // The end that the store holds; none where there is no end yet, or the store is gone.
  std::optional<std::string> record() const;
  // Null where the end is not known now.
  std::exception_ptr find(const std::string& what, const std::string& said);
  std::exception_ptr find_death(const std::string& what, const std::string& said);
  // The error that the store's `record` means for this rank; null where the record is this rank's own.
  std::exception_ptr told_by(const std::string& record, const std::string& what, const std::string& said) const;
  // The process of `rank`; empty where it is not known.
  std::string process_of(int rank) const;

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const std::vector<std::string> processes_;
};

}  // namespace gradwire::internal
