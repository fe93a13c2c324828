// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How long the store of an elastic job may be silent before a host that joined gives the job up.
#pragma once

#include <string>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// Between two talks to the store; less with a short heartbeat timeout.
inline constexpr Milliseconds kBetweenTalks{1000};

// Judges how the talks to the store end: whether the user hears of a silence, and whether the job is lost to this host.
// Times are given by the caller and never go back. For one thread.
class StoreSilence final {
 public:
  using Time = Deadline::Clock::time_point;

  // The store of the job at `address` ("HOST:PORT") was heard of at `now`, and the job is lost when the store has been
  // silent for `limit`.
  StoreSilence(std::string address, Milliseconds limit, Time now);

  // The store has answered.
  void hears(Time now) noexcept { heard_ = now; }

  struct Finding {
    std::string to_tell;   // a sentence for the user; empty: nothing
    std::string why_lost;  // why this host has to stop its ranks; empty: it need not
  };
  // A talk has ended at `now`, with `problem` where it failed (empty: it went well). A talk may fail although the store
  // has answered in it, which the caller tells before.
  Finding end_talk(const std::string& problem, Time now);

 private:
  const std::string address_;
  const Milliseconds limit_;
  Time heard_;
  int failed_talks_ = 0;  // in a row
  bool told_ = false;     // the user has heard of a silence that has not ended
};

}  // namespace gradwire::launch
