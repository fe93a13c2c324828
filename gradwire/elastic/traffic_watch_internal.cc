// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/traffic_watch_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::internal {
namespace {

// The moment after a call before it is quiet.
constexpr std::chrono::microseconds kGap{2000};
// The same before the last call of a step. Hooks compute between two calls of a bucket, and the next call would come
// soon behind the piece.
constexpr std::chrono::microseconds kGapWithinStep{20'000};
// How long pieces wait in all: so many times as they take, and this time more.
constexpr int kShare = 3;
constexpr std::chrono::seconds kGrace{2};
// After so many steps of a tape it is seen whether the newcomer comes nearer.
constexpr int kStepsBetweenLooks = 8;

}  // namespace

void TrafficWatch::UnderWay::begin_step() {
  const MutexLock lock(mutex);
  expected = std::exchange(begun, 0);
}

void TrafficWatch::UnderWay::begin() {
  const MutexLock lock(mutex);
  ++calls;
  ++begun;
}

void TrafficWatch::UnderWay::end() {
  const MutexLock lock(mutex);
  if (--calls > 0) return;
  quiet_since = std::chrono::steady_clock::now();
  changed.notify_all();
}

std::chrono::microseconds TrafficWatch::UnderWay::gap() const {
  return begun > 0 && begun < expected ? kGapWithinStep : kGap;
}

std::shared_ptr<Work> TrafficWatch::call(int group, GroupCall& call,
                                         const std::function<std::shared_ptr<Work>()>& make) {
  under_way_->begin();
  std::shared_ptr<Work> work;
  Future ended;
  try {
    work = recorder_ == nullptr ? make() : recorder_->call(group, call, make);
    ended = work->future();
  } catch (const UnsupportedError&) {
    under_way_->end();  // nobody can tell when a work without a future ends
    if (work == nullptr) throw;
    return work;
  } catch (...) {
    under_way_->end();
    throw;
  }
  ended->addCallback([under_way = under_way_](c10::ivalue::Future&) { under_way->end(); });
  return work;
}

bool TrafficWatch::wait_until_quiet(std::chrono::microseconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  MutexLock lock(under_way_->mutex);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const auto quiet_from = under_way_->quiet_since + under_way_->gap();
    if (under_way_->calls == 0 && now >= quiet_from) return true;
    if (now >= end) return false;
    const auto look = under_way_->calls == 0 ? std::min(quiet_from, end) : end;
    under_way_->changed.wait_until(lock, look);
  }
}

void YieldingSender::send(const std::function<void()>& send) {
  const auto begin = Clock::now();
  const auto patience =
      std::chrono::duration_cast<std::chrono::microseconds>(kGrace + kShare * times_.took - times_.waited);
  if (!hurries_ && patience.count() > 0) watch_->wait_until_quiet(patience);
  const auto sent = Clock::now();
  send();
  times_.waited += sent - begin;
  times_.took += Clock::now() - sent;
}

void YieldingSender::begin_step(std::int64_t behind) noexcept {
  if (behind <= 1) {
    hurries_ = false;
    steps_ = 0;
    return;
  }
  if (steps_++ % kStepsBetweenLooks != 0) return;
  const bool waits = times_.waited - seen_.waited > times_.took - seen_.took;
  hurries_ = hurries_ || (steps_ > 1 && behind >= behind_ && waits);
  behind_ = behind;
  seen_ = times_;
}

}  // namespace gradwire::internal
