// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/call_internal.h"

#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/shared/failure_internal.h"
#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {

std::string Call::name() const {
  return concat(call_name(concat(name_of(operation_), " (call ", sequence_ + 1, ")")), " on rank ", rank(), " of ",
                size());
}

void Call::begin(Operation operation, const CallOptions& options) noexcept {
  operation_ = operation;
  options_ = options;
  machine_.set_deadline(options.deadline);
}

void Call::finish() noexcept {
  steps_.finish();
  ++sequence_;
}

Fingerprint Call::fingerprint(DType dtype, std::size_t count, ReduceOp op, int root) const noexcept {
  return complete(fingerprint_of(operation_, dtype, count, op, root), sequence_ + 1, options_);
}

void Call::enter(const Fingerprint& mine, Location location) {
  trace::point("collective.entry", rank(), sequence_);
  require(steps_.enter({mine, location}, buffers_.lends(location)));
  compare_fingerprints(mine);
}

void Call::meet() { require(steps_.meet()); }

std::size_t Call::look_for_more_than(std::size_t bytes, std::uint64_t owners) const noexcept {
  // About as long as a piece takes. Whoever shares a processor leaves the wait to the step.
  const int pauses = machine_.spins() ? 256 : 0;
  std::size_t staged = buffers_.staged_by(owners);
  for (int i = 0; staged <= bytes && i < pauses; ++i) {
    spin_pause();
    staged = buffers_.staged_by(owners);
  }
  return std::max(staged, bytes);
}

void Call::exit() { require(steps_.exit()); }

bool Call::all_in_place() const noexcept {
  const std::uint64_t segment = steps_.card(rank()).location.segment;
  bool all = segment != 0;
  for (int peer = 0; all && peer < size(); ++peer) all = steps_.card(peer).location.segment == segment;
  return all;
}

bool Call::all_staged() const noexcept {
  bool all = true;
  for (int peer = 0; all && peer < size(); ++peer) all = steps_.card(peer).location.is_staged();
  return all;
}

void Call::publish_parts(const Offer& offer, Location location, std::span<const std::size_t> expected) {
  if (location.is_staged() && expected.empty()) return;                  // not a direct call, whatever the others have
  auto& entries = buffers_.slot(rank()).parts[(steps_.step() + 1) & 1];  // read after the step that comes next
  for (std::size_t i = 0; i < offer.parts.size(); ++i) {
    const ConstSlice& part = offer.parts[i];
    entries[i] = {buffers_.offset_of(part.data, location), part.count, expected.empty() ? 0 : expected[i]};
  }
}

void Call::compare_fingerprints(const Fingerprint& mine) const {
  bool equal = true;
  for (int peer = 0; peer < size(); ++peer) equal = equal && steps_.card(peer).fingerprint == mine;
  if (equal) return;
  std::vector<Fingerprint> all;
  for (int peer = 0; peer < size(); ++peer) all.push_back(steps_.card(peer).fingerprint);
  require_same(all, rank());
}

std::vector<int> Call::missing_ranks() const {
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (!steps_.has_arrived(peer)) missing.push_back(peer);
  }
  return missing;
}

// Ranks whose processes ended before they left or told of a failure. One that did either may end at any time.
std::vector<int> Call::dead_ranks() const {
  std::vector<int> dead = world_.gone();
  std::erase_if(dead, [this](int peer) { return steps_.state_of(peer) != RankState::active; });
  return dead;
}

void Call::throw_deaths(const std::vector<int>& dead) const {
  std::vector<std::string> names;
  for (const int peer : dead) names.push_back(concat("rank ", peer, " (", world_.describe_peer(peer), ")"));
  const char* const when = dead.size() == 1 ? " died before it did its part" : " died before the call ended";
  throw peer_error(concat(name(), ": ", join(names, " and "), when), dead);
}

void Call::throw_end(const StepEnd& end) const {
  switch (end.kind) {
    case StepEnd::Kind::own_failure:
      std::rethrow_exception(steps_.reason());
    case StepEnd::Kind::peer_failed:
      throw_failure_of(end.peer, steps_.report_of(end.peer), name());
    case StepEnd::Kind::peer_left:
      // A rank that hears of a death elsewhere, on a duplicate say, may leave at once. The cause is the dead rank.
      if (const std::vector<int> dead = dead_ranks(); !dead.empty()) throw_deaths(dead);
      throw peer_error(concat(name(), ": rank ", end.peer, " left the group before it did its part"), {end.peer},
                       kAfterALeave);
    case StepEnd::Kind::peer_died:
      // A rank that hears of a death may end before it tells: so all are named, the first among them.
      throw_deaths(dead_ranks());
    case StepEnd::Kind::interrupted:
      throw AbortedError(concat(name(), ": interrupted on this rank"));
    case StepEnd::Kind::deadline:
    case StepEnd::Kind::met:
      break;
  }
  std::vector<int> missing = missing_ranks();
  if (missing.empty()) missing = {end.peer};  // it came after the deadline
  throw TimeoutError(concat(name(), ": the deadline passed while waiting for ", name_ranks(missing)), missing);
}

}  // namespace gradwire::shared
