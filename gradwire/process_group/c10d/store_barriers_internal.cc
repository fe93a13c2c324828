// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/c10d/store_barriers_internal.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kLook{100};
constexpr char kBetween = ';';  // in a report: the late ranks are before it, the dead ones after it

std::string key_of(std::uint64_t barrier, int rank) { return concat("barrier/", barrier, "/", rank); }
std::string report_key(std::uint64_t barrier) { return concat("barrier/", barrier, "/report"); }

enum class End { came, late, died };

// Waits for the key that `peer` sets.
End await(Store& store, const std::string& key, int peer, const Deadline& until, const StoreBarriers::Look& look) {
  for (;;) {
    try {
      store.wait(std::span(&key, 1), std::min(kLook, until.remaining()));
      return End::came;
    } catch (const TimeoutError&) {
    }
    look.check();
    // Whoever has come may end.
    if (look.has_died(peer)) return store.check(std::span(&key, 1)) ? End::came : End::died;
    if (until.expired()) return End::late;
  }
}

}  // namespace

std::uint64_t StoreBarriers::next() {
  MutexLock lock(mutex_);
  return next_++;
}

void StoreBarriers::meet(const ProcessGroup& group, Store& store, Milliseconds timeout, bool wait_all,
                         const Look& look) {
  const Deadline deadline = Deadline::after(timeout);
  const std::uint64_t number = next();
  std::vector<int> late;
  std::vector<int> dead;
  if (group.rank() != 0) {
    store.set(key_of(number, group.rank()), "here");
    const Deadline until = Deadline::after(saturated_sum(timeout, grace_for_report(timeout)));
    const End end = await(store, report_key(number), 0, until, look);
    if (end == End::died) throw_missing(group, {}, {0}, timeout, /*wait_all=*/true);
    if (end == End::late) throw_no_report(group, timeout);
    const std::string told = store.get(report_key(number));
    late = leading_numbers(told);
    dead = leading_numbers(told.substr(told.find(kBetween) + 1));
  } else {
    for (int peer = 1; peer < group.size() && ((late.empty() && dead.empty()) || wait_all); ++peer) {
      const End end = await(store, key_of(number, peer), peer, deadline, look);
      if (end == End::late) late.push_back(peer);
      if (end == End::died) dead.push_back(peer);
    }
    store.set(report_key(number), concat(join(late), kBetween, join(dead)));
  }
  if (!late.empty() || !dead.empty()) throw_missing(group, late, dead, timeout, wait_all);
  if (group.rank() == 0) delete_keys_before(number, group, store);
}

// All have come to barrier `number`, so nobody reads what the barriers before have left.
void StoreBarriers::delete_keys_before(std::uint64_t number, const ProcessGroup& group, Store& store) {
  std::uint64_t left = 0;
  {
    MutexLock lock(mutex_);
    left = std::exchange(first_left_, number);
  }
  for (; left < number; ++left) {
    for (int peer = 1; peer < group.size(); ++peer) store.delete_key(key_of(left, peer));
    store.delete_key(report_key(left));
  }
}

}  // namespace gradwire::internal
