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
  // Waits until no call is under way, and none was for a moment. Returns false when `patience` passed first.
  bool wait_until_quiet(std::chrono::microseconds patience) const;

 private:
  // Outlives the watch with the calls.
  struct UnderWay {
    mutable Mutex mutex;
    mutable ConditionVariable changed;
    int calls GRADWIRE_GUARDED_BY(mutex) = 0;
    std::chrono::steady_clock::time_point quiet_since GRADWIRE_GUARDED_BY(mutex) = {};

    void begin() GRADWIRE_EXCLUDES(mutex);
    void end() GRADWIRE_EXCLUDES(mutex);
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
  // newcomer comes no nearer in eight steps, because too little time is left between the calls, pieces go at once until
  // it is there: the sooner it is, the fewer steps the tape has.
  void begin_step(std::int64_t behind) noexcept;
  bool hurries() const noexcept { return hurries_; }

 private:
  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<const TrafficWatch> watch_;
  Clock::duration waited_{};  // pieces, in all
  Clock::duration took_{};    // pieces, in all
  bool hurries_ = false;
  int steps_ = 0;            // since the newcomer was there
  std::int64_t behind_ = 0;  // at the last look
};

}  // namespace gradwire::internal
