// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/store_silence.h"

#include <chrono>
#include <utility>

#include "gradwire/base/strings.h"
#include "launch/judgement.h"

namespace gradwire::launch {
namespace {

// The user hears of a store that has not answered for so long since a talk was due.
constexpr Milliseconds kUntold{1000};

}  // namespace

StoreSilence::StoreSilence(std::string address, Milliseconds limit, Time now)
    : address_(std::move(address)), limit_(limit), heard_(now) {}

StoreSilence::Finding StoreSilence::end_talk(const std::string& problem, Time now) {
  Finding found;
  if (problem.empty()) {
    failed_talks_ = 0;
    if (std::exchange(told_, false))
      found.to_tell = concat("the store of the job at ", address_, " answers again, and the job goes on");
    return found;
  }
  ++failed_talks_;
  const Time::duration silence = now - heard_;
  if (silence >= kBetweenTalks + kUntold && !std::exchange(told_, true)) {
    found.to_tell = concat("the store of the job at ", address_, " does not answer; this host's ranks wait up to ",
                           seconds_text(limit_), " for it");
  }
  // Twice: this process may not have run for a while itself, in the middle of the first.
  if (failed_talks_ > 1 && silence >= limit_) {
    found.why_lost =
        concat("the coordinator of the job at ", address_, " has not answered for ", seconds_text(limit_), " (",
               problem, "), so this host stops its ranks: a part of the job that is cut off does not train on");
  }
  return found;
}

}  // namespace gradwire::launch
