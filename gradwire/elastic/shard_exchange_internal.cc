// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/shard_exchange_internal.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

using Holds = ShardedState::Holds;

// An entry of KeptEntries.
constexpr Holds kKept = static_cast<Holds>('k');

// Who has which entry, who needs it, and who sends it. The same on all members.
class Plan {
 public:
  // `held`: by rank, a letter for each entry.
  Plan(std::vector<int> owners, std::vector<std::string> held, bool copies)
      : owners_(std::move(owners)), held_(std::move(held)), copies_(copies) {}

  std::size_t count() const noexcept { return owners_.size(); }
  bool holds(int rank, std::size_t entry) const {
    return letter(rank, entry) == Holds::own || letter(rank, entry) == Holds::copy;
  }
  // Whether the rank is dealt the entry.
  bool gets(int rank, std::size_t entry) const {
    const int owner = owners_[entry];
    return rank == owner || (copies_ && rank == (owner + 1) % size());
  }

  // The lowest rank that holds the entry as its owner, else the lowest with a copy, else the lowest that kept the
  // entry; -1: nobody.
  int source_of(std::size_t entry) const {
    for (const Holds how : {Holds::own, Holds::copy, kKept}) {
      for (int rank = 0; rank < size(); ++rank) {
        if (letter(rank, entry) == how) return rank;
      }
    }
    return -1;
  }
  bool is_lost(std::size_t entry) const { return source_of(entry) < 0; }

  bool needs(int rank, std::size_t entry) const { return gets(rank, entry) && !holds(rank, entry); }
  // What `rank` sends of what it holds.
  std::vector<std::size_t> sent_by(int rank) const { return sent_of(rank, false); }
  // What `rank` sends of what it kept.
  std::vector<std::size_t> kept_and_sent_by(int rank) const { return sent_of(rank, true); }
  // The lost entries that `rank` owns from now on.
  std::vector<std::size_t> found_by(int rank) const {
    std::vector<std::size_t> entries;
    for (std::size_t entry = 0; entry < count(); ++entry) {
      if (is_lost(entry) && owners_[entry] == rank) entries.push_back(entry);
    }
    return entries;
  }
  bool needs_any(int rank, const std::vector<std::size_t>& entries) const {
    return std::any_of(entries.begin(), entries.end(), [&](std::size_t entry) { return needs(rank, entry); });
  }
  // How many entries only copies are left of.
  std::size_t saved_by_copies() const {
    std::size_t saved = 0;
    for (std::size_t entry = 0; entry < count(); ++entry) {
      const int source = source_of(entry);
      if (source >= 0 && letter(source, entry) == Holds::copy) ++saved;
    }
    return saved;
  }

 private:
  std::vector<std::size_t> sent_of(int rank, bool kept) const {
    std::vector<std::size_t> entries;
    for (std::size_t entry = 0; entry < count(); ++entry) {
      if (source_of(entry) == rank && (letter(rank, entry) == kKept) == kept && needed_by_any(entry))
        entries.push_back(entry);
    }
    return entries;
  }
  int size() const noexcept { return static_cast<int>(held_.size()); }
  Holds letter(int rank, std::size_t entry) const {
    const std::string& held = held_[static_cast<std::size_t>(rank)];
    return entry < held.size() ? static_cast<Holds>(held[entry]) : Holds::no;
  }
  bool needed_by_any(std::size_t entry) const {
    for (int rank = 0; rank < size(); ++rank) {
      if (needs(rank, entry)) return true;
    }
    return false;
  }

  const std::vector<int> owners_;
  const std::vector<std::string> held_;
  const bool copies_;
};

std::string letters_of(const ShardedState& state, std::optional<ShardedState::Version> version,
                       const KeptEntries& kept) {
  std::string letters;
  if (!version) return letters;
  for (const Holds holds : state.held(*version)) letters.push_back(static_cast<char>(holds));
  for (const auto& [entry, bytes] : kept) {
    char& letter = letters.at(entry);
    if (letter == static_cast<char>(Holds::no)) letter = static_cast<char>(kKept);
  }
  return letters;
}

// Keeps what this member holds and does not get again.
void keep_entries(const ShardedState& state, ShardedState::Version version, const Plan& plan, int rank,
                  KeptEntries& kept) {
  for (std::size_t entry = 0; entry < plan.count(); ++entry) {
    if (plan.gets(rank, entry)) {
      kept.erase(entry);
    } else if (plan.holds(rank, entry)) {
      kept[entry] = state.save_entries({entry}, version);
    }
  }
}

// The bytes of entries that no member holds, and a log line that says where they come from.
std::string lost_entries(const ShardedState& state, const std::vector<std::size_t>& entries, std::size_t all,
                         const std::string& checkpoint) {
  const std::string what = concat("elastic training: no member holds ", entries.size(), " of the ", all, " entries of ",
                                  state.sharding_identity(), " any more; they ");
  std::string reason = "no checkpoint was named";
  if (!checkpoint.empty()) {
    try {
      std::string bytes = state.read_entries(entries, checkpoint);
      log::warn(concat(what, "come from the checkpoint '", checkpoint, "'"));
      return bytes;
    } catch (const std::exception& error) {
      const std::string said = describe(error);
      reason = concat("the checkpoint '", checkpoint, "' cannot be used: ", said.substr(0, said.find('\n')));
    }
  }
  log::warn(concat(what, "begin anew (", reason, ")"));
  return state.new_entries(entries);
}

}  // namespace

ShardedState::Deal exchange_shards(ProcessGroup& group, const ShardedState& state, const ShardOptions& options,
                                   std::optional<ShardedState::Version> version, KeptEntries& kept) {
  if (version != ShardedState::Version::counted) kept.clear();  // they are from before the newest step
  ShardedState::Deal deal{.rank = group.rank(), .size = group.size(), .copies = options.copies};
  deal.version = version.value_or(ShardedState::Version::counted);
  const Plan plan(state.owners_among(deal.size), gather_bytes(group, letters_of(state, version, kept), kAllRanks),
                  options.copies);
  ShardedState::Parcel sent{.entries = plan.sent_by(deal.rank), .bytes = ""};
  ShardedState::Parcel found{.entries = plan.found_by(deal.rank), .bytes = ""};
  if (!sent.entries.empty()) sent.bytes = state.save_entries(sent.entries, *version);
  if (!found.entries.empty()) found.bytes = lost_entries(state, found.entries, plan.count(), options.checkpoint);
  if (deal.rank == 0 && plan.saved_by_copies() > 0) {
    log::info(concat("elastic training: ", plan.saved_by_copies(), " of the ", plan.count(), " entries of ",
                     state.sharding_identity(), " come from a neighbour's copy"));
  }
  const auto sizes = gather_integers(
      group, {static_cast<std::int64_t>(sent.bytes.size()), static_cast<std::int64_t>(found.bytes.size())});
  const auto take = [&](int from, std::vector<std::size_t> entries, std::string bytes, std::int64_t size) {
    bytes = transfer_bytes(group, std::move(bytes), static_cast<std::size_t>(size), from, kAllRanks);
    if (plan.needs_any(deal.rank, entries)) deal.parcels.push_back({std::move(entries), std::move(bytes)});
  };
  for (int from = 0; from < deal.size; ++from) {
    const auto& bytes = sizes[static_cast<std::size_t>(from)];
    take(from, plan.sent_by(from), from == deal.rank ? std::move(sent.bytes) : "", bytes[0]);
    take(from, plan.found_by(from), from == deal.rank ? std::move(found.bytes) : "", bytes[1]);
    for (const std::size_t entry : plan.kept_and_sent_by(from)) {
      std::string one = broadcast_bytes(group, from == deal.rank ? kept.at(entry) : "", from);
      if (plan.needs(deal.rank, entry)) deal.parcels.push_back({{entry}, std::move(one)});
    }
  }
  if (version) keep_entries(state, *version, plan, deal.rank, kept);
  return deal;
}

}  // namespace gradwire::internal
