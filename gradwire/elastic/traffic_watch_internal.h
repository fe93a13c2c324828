// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Keeps what goes to a newcomer out of the way of the calls of the steps: both share the links of a host.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gradwire/base/mutex.h"
#include "gradwire/elastic/call_tap_internal.h"

namespace gradwire::internal {

// Makes the calls of an ElasticGroup, and knows when none is under way. Thread-safe.
class TrafficWatch final : public CallTap {
 public:
  // `recorder`: null, or makes the calls in place of the watch.
  explicit TrafficWatch(std::shared_ptr<CallTap> recorder = nullptr) : recorder_(std::move(recorder)) {}

  std::shared_ptr<Work> call(int group, GroupCall& call, const std::function<std::shared_ptr<Work>()>& make) override;
  // The calls from here on are those of another step. Steps mostly make as many calls as the step before.
  void begin_step() { under_way_->begin_step(); }
  // Waits until no call is under way, and none was for a moment, which is longer between the first and the last call of
  // a step. Returns false when `patience` passed first.
  bool wait_until_quiet(std::chrono::microseconds patience) const;

 private:
  // Outlives the watch with the calls.
  struct UnderWay {
    mutable Mutex mutex;
    mutable ConditionVariable changed;
    int calls GRADWIRE_GUARDED_BY(mutex) = 0;
    int begun GRADWIRE_GUARDED_BY(mutex) = 0;     // in this step
    int expected GRADWIRE_GUARDED_BY(mutex) = 0;  // in each step: those of the last one
    std::chrono::steady_clock::time_point quiet_since GRADWIRE_GUARDED_BY(mutex) = {};

    void begin_step() GRADWIRE_EXCLUDES(mutex);
    void begin() GRADWIRE_EXCLUDES(mutex);
    void end() GRADWIRE_EXCLUDES(mutex);
    std::chrono::microseconds gap() const GRADWIRE_REQUIRES(mutex);
  };

  const std::shared_ptr<CallTap> recorder_;
  const std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
};

// Lets the pieces of a message go while no call of the step is under way. So that the newcomer comes in any case,
// pieces wait at most three times as long as they take, and two seconds more. For one thread.
class YieldingSender final {
 public:
  explicit YieldingSender(std::shared_ptr<const TrafficWatch> watch) : watch_(std::move(watch)) {}

  // Waits until a piece may go, and calls `send`, which returns when the piece has arrived.
  void send(const std::function<void()>& send);
  // To be called before the pieces of each step of a tape; `behind`: how many steps of the members are newer. When the
  // newcomer comes no nearer in eight steps in which pieces waited longer than they took, too little time is left
  // between the calls: pieces go at once until it is there, because the sooner it is, the fewer steps the tape has. A
  // newcomer that is late because its own steps take long holds pieces up, and gains nothing by that.
  void begin_step(std::int64_t behind) noexcept;
  bool hurries() const noexcept { return hurries_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Of pieces, in all.
  struct Times {
    Clock::duration waited{};
    Clock::duration took{};
  };

  const std::shared_ptr<const TrafficWatch> watch_;
  Times times_;
  bool hurries_ = false;
  int steps_ = 0;  // since the newcomer was there
  // At the last look.
  std::int64_t behind_ = 0;
  Times seen_;
};

}  // namespace gradwire::internal
