// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/c10d/end_record_internal.h"

namespace gradwire::internal {
namespace {

// In the store: "aborted <rank> <reason>" or "lost <ranks>", the first only.
const std::string kEnd = "end";
constexpr Milliseconds kBetweenLooks{20};
// A connection closes a moment before its process has ended, and another host's rank takes a moment to tell.
constexpr Milliseconds kHearing{1000};

}  // namespace

EndRecord::EndRecord(std::shared_ptr<Store> store, int rank, int size, std::vector<std::string> processes)
    : store_(std::move(store)), rank_(rank), size_(size), processes_(std::move(processes)) {
  if (store_ != nullptr && processes_.empty()) rendezvous::register_rank(*store_, rank_);
}

void EndRecord::say_aborted(const std::string& reason) noexcept {
  try {
    if (store_ != nullptr) store_->compare_set(kEnd, "", concat("aborted ", rank_, " ", reason));
  } catch (const std::exception& problem) {
    log::debug(concat("abort on rank ", rank_, ": the store could not be told: ", problem.what()));
  }
}

std::exception_ptr EndRecord::told(const std::string& what, const std::string& when) const {
  const std::optional<std::string> first = record();
  return first ? told_by(*first, what, when) : nullptr;
}

std::exception_ptr EndRecord::explain(const std::string& what, const std::exception_ptr& error, bool at_call) {
  const std::exception_ptr ours = error_from_c10d(what, error, at_call);
  Milliseconds patience{0};
  std::string said;
  try {
    std::rethrow_exception(ours);
  } catch (const PeerError& problem) {
    if (!problem.peers().empty()) {
      // The engine names the rank; a rank that aborted has told the reason here alone.
      const std::optional<std::string> first = record();
      const bool aborted = first && first->starts_with("aborted ");
      const std::exception_ptr told = aborted ? told_by(*first, what, problem.what()) : nullptr;
      return told ? told : ours;
    }
    patience = kHearing;
    said = problem.what();
  } catch (const TimeoutError& problem) {
    said = problem.what();
  } catch (...) {
    return ours;
  }
  if (said.starts_with(what)) said = said.substr(std::min(said.size(), what.size() + 2));
  const Deadline deadline = Deadline::after(patience);
  for (;;) {
    if (const std::exception_ptr found = find(what, said)) return found;
    if (deadline.expired() || store_ == nullptr) return ours;
    try {
      store_->wait({&kEnd, 1}, kBetweenLooks);
    } catch (const TimeoutError&) {
    } catch (const std::exception&) {  // the store went with the rank that served it
      const std::exception_ptr death = find(what, said);
      return death ? death : ours;
    }
  }
}

// What was told first comes first: ranks that have ended since because of it died too, and are not at fault.
std::exception_ptr EndRecord::find(const std::string& what, const std::string& said) {
  if (const std::optional<std::string> first = record()) return told_by(*first, what, said);
  try {
    return find_death(what, said);
  } catch (const std::exception&) {  // the store has gone, which knew the processes
    return nullptr;
  }
}

std::optional<std::string> EndRecord::record() const {
  try {
    if (store_ != nullptr && store_->check({&kEnd, 1})) return store_->get(kEnd);
  } catch (const std::exception&) {  // the store has gone
  }
  return std::nullopt;
}

std::exception_ptr EndRecord::find_death(const std::string& what, const std::string& said) {
  std::vector<int> dead;
  std::vector<std::string> names;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string process = process_of(rank);
    if (rank == rank_ || may_be_alive(process)) continue;
    dead.push_back(rank);
    names.push_back(concat("rank ", rank, " (", describe_process(process), ")"));
  }
  if (dead.empty()) return nullptr;
  const std::string mine = concat("lost ", join(dead, " "));
  try {
    const std::string first = store_ == nullptr ? mine : store_->compare_set(kEnd, "", mine);
    if (first != mine) return told_by(first, what, said);
  } catch (const std::exception&) {  // the store went with the rank that died
  }
  return std::make_exception_ptr(peer_error(concat(what, ": ", join(names, ", "), " died (", said, ")"), dead));
}

bool EndRecord::has_died(int rank) const { return !may_be_alive(process_of(rank)); }

std::string EndRecord::process_of(int rank) const {
  if (!processes_.empty()) return processes_[static_cast<std::size_t>(rank)];
  return store_ == nullptr ? "" : rendezvous::process_of(*store_, rank);
}

std::exception_ptr EndRecord::told_by(const std::string& record, const std::string& what,
                                      const std::string& said) const {
  std::istringstream told(record);
  std::string kind;
  std::vector<int> ranks;
  told >> kind;
  if (kind == "aborted") {
    int rank = 0;
    std::string reason;
    told >> rank;
    std::getline(told.ignore(1), reason, '\0');
    if (rank == rank_) return nullptr;
    return std::make_exception_ptr(peer_error(concat(what, ": rank ", rank, " aborted the group: ", reason), {rank}));
  }
  for (int rank = 0; told >> rank;) ranks.push_back(rank);
  return std::make_exception_ptr(
      peer_error(concat(what, ": ", name_ranks(ranks), " died, as another rank saw (", said, ")"), ranks));
}

}  // namespace gradwire::internal
