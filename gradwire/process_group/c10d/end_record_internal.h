// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Why a group over an engine of c10d has ended: engines say that a connection broke, and not whose fault that is.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/store/store.h"

namespace gradwire::internal {

// What the ranks of one group know of each other's ends: which process each rank is, and in the store the first end,
// which is a rank's abort() or a death that a rank of the same host saw. Thread-safe. Outlives the group as long as a
// call is under way.
class EndRecord {
 public:
  // `store` may be null: then only `processes` help. `processes` has process_identity() of every rank; where it is
  // empty this rank writes its own into the store, and reads the others' when there is an error.
  EndRecord(std::shared_ptr<Store> store, int rank, int size, std::vector<std::string> processes);

  // By rank; empty where they are not known before an error.
  const std::vector<std::string>& processes() const noexcept { return processes_; }

  // Tells the others that this rank aborts, unless an end is told already. Never throws.
  void say_aborted(const std::string& reason) noexcept;

  // `error` of an engine as one of ours (error_from_c10d), which begins with `what`. A PeerError of unknown peers, or a
  // time-out, becomes a PeerError that names the ranks which died or aborted, where that can be known: deaths on this
  // host by looking, others from the store. Waits for that up to a second after a PeerError. Where it stays unknown,
  // the error is as the engine said. A PeerError with peers stays too, but for the reason of a rank that aborted.
  std::exception_ptr explain(const std::string& what, const std::exception_ptr& error, bool at_call);

 private:
  // What the store holds; nothing where there is no end yet, or no store any more.
  std::optional<std::string> record() const;
  // Null where the end is not known now.
  std::exception_ptr find(const std::string& what, const std::string& said);
  std::exception_ptr find_death(const std::string& what, const std::string& said);
  // What the store's `record` means here; null where it is this rank's own.
  std::exception_ptr told_by(const std::string& record, const std::string& what, const std::string& said) const;
  // Empty where it is not known.
  std::string process_of(int rank) const;

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const std::vector<std::string> processes_;
};

}  // namespace gradwire::internal
