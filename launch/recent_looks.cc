// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/recent_looks.h"

#include <algorithm>
#include <chrono>

namespace gradwire::launch {
namespace {

// Over so long the means are taken that are shown.
constexpr std::chrono::seconds kSpan{5};
// A step may take longer than the last ones. After so many times as long, none has ended lately.
constexpr double kLongStep = 3;

}  // namespace

void RecentLooks::add(const LiveLook& look) {
  if (now_ && now_->opened != look.sums.opened) changes_.clear();
  now_ = look.sums;
  if (!changes_.empty() && changes_.back().sums.totals.steps == look.sums.totals.steps) return;
  changes_.push_back(look);
  // The age is that at the newest change, and not at the newest look: the last step is kept however long ago it ended.
  while (changes_.size() > 1 && look.time - changes_[1].time >= kSpan) changes_.pop_front();
}

LiveRank RecentLooks::rank(int number, Time now) const {
  LiveRank without_steps{.rank = number, .now = now_};
  if (changes_.empty()) return without_steps;
  const LiveLook& newest = changes_.back();
  const auto before = changes_.size() > 1 ? std::optional(changes_.front().sums) : std::nullopt;
  LiveRank live = live_rank(number, before, newest.sums);
  live.now = now_;
  const std::chrono::duration<double> silence = now - newest.time;
  const bool is_late = silence > kSpan && silence.count() * live.steps_per_second > kLongStep;
  return is_late ? without_steps : live;
}

}  // namespace gradwire::launch
