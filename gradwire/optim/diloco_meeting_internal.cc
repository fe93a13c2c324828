// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/diloco_meeting_internal.h"

#include <algorithm>
#include <cstddef>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

using Workers = std::vector<WorkerStanding>;

// Where the workers that hold the state are with fragment `f`.
struct Front {
  std::int64_t begun_at = 0;  // of the newest exchange
  bool any_ended = false;     // a worker has ended that exchange
  bool any_lacks = false;     // a worker that began that exchange has no average
};

Front front_of(const Workers& workers, std::size_t f) {
  Front front;
  bool first = true;
  for (const WorkerStanding& worker : workers) {
    if (!worker.holds) continue;
    const std::int64_t begun_at = worker.fragments[f].begun_at;
    front.begun_at = first ? begun_at : std::max(front.begun_at, begun_at);
    first = false;
  }
  for (const WorkerStanding& worker : workers) {
    if (!worker.holds || worker.fragments[f].begun_at != front.begun_at) continue;
    front.any_ended |= worker.fragments[f].phase == DilocoPhase::idle;
    front.any_lacks |= worker.fragments[f].phase == DilocoPhase::begun;
  }
  return front;
}

// A worker without the average of an exchange that others have ended cannot go on from its own state.
bool is_behind(const FragmentStanding& own, const Front& front) {
  return own.phase == DilocoPhase::begun && (front.any_ended || own.begun_at < front.begun_at);
}

void require_same_bits(const Workers& workers, const DilocoPlan& plan, std::size_t f) {
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    if (plan.receives(static_cast<int>(rank))) continue;
    const FragmentStanding& one = workers[rank].fragments[f];
    for (std::size_t other = 0; other < rank; ++other) {
      const FragmentStanding& before = workers[other].fragments[f];
      if (plan.receives(static_cast<int>(other)) || before.exchanges != one.exchanges || before.hash == one.hash)
        continue;
      throw MismatchError(concat("DilocoAverager: after ", one.exchanges, " exchanges of fragment ", f, " rank ", rank,
                                 " of the new epoch has other outer parameters than rank ", other,
                                 "; only exchanges may change them"));
    }
  }
}

double share_of(const Workers& workers, const DilocoPlan& plan, std::size_t f) {
  std::size_t without = 0;
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    const FragmentStanding& own = workers[rank].fragments[f];
    const bool receives = plan.receives(static_cast<int>(rank));
    if (receives || (own.begun_at == plan.fragments[f].begun_at && !own.contributes)) ++without;
  }
  const auto all = static_cast<double>(workers.size());
  return without == workers.size() ? 1 : all / (all - static_cast<double>(without));
}

}  // namespace

bool DilocoPlan::receives(int rank) const { return std::binary_search(receivers.begin(), receivers.end(), rank); }

DilocoPlan plan_meeting(const std::vector<WorkerStanding>& workers, bool fresh) {
  Workers all = workers;
  DilocoPlan plan;
  if (std::none_of(all.begin(), all.end(), [](const WorkerStanding& worker) { return worker.holds; })) {
    if (!fresh) return plan;
    all.front().holds = true;
  }
  std::vector<Front> fronts;
  for (std::size_t f = 0; f < all.front().fragments.size(); ++f) fronts.push_back(front_of(all, f));
  std::int64_t furthest = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    bool receives = !all[rank].holds;
    for (std::size_t f = 0; f < fronts.size() && !receives; ++f)
      receives = is_behind(all[rank].fragments[f], fronts[f]);
    if (receives) {
      plan.receivers.push_back(static_cast<int>(rank));
    } else if (plan.donor < 0 || all[rank].steps > furthest) {
      plan.donor = static_cast<int>(rank);
      furthest = all[rank].steps;
    }
  }
  for (std::size_t f = 0; f < fronts.size(); ++f) {
    plan.fragments.push_back({.again = fronts[f].any_lacks && !fronts[f].any_ended, .begun_at = fronts[f].begun_at});
    require_same_bits(all, plan, f);
    if (plan.fragments[f].again) plan.fragments[f].share = share_of(all, plan, f);
  }
  return plan;
}

}  // namespace gradwire::internal
