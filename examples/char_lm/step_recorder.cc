// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/step_recorder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace char_lm {
namespace {

using Clock = std::chrono::steady_clock;

thread_local std::optional<std::size_t> running_bucket;  // whose hook this thread runs
thread_local int depth = 0;                              // of calls: a group may call another
thread_local bool trains = false;                        // it is the thread of the steps

double length(const Span& span) { return span.end - span.begin; }

// The same seconds as spans that are in order and do not touch.
std::vector<Span> united(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> result;
  for (const Span& span : spans) {
    if (result.empty() || result.back().end < span.begin) {
      result.push_back(span);
    } else {
      result.back().end = std::max(result.back().end, span.end);
    }
  }
  return result;
}

double total(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& span : spans) sum += length(span);
  return sum;
}

// The seconds that lie in both of two lists of united spans.
double common(const std::vector<Span>& these, const std::vector<Span>& those) {
  double sum = 0;
  for (const Span& a : these) {
    for (const Span& b : those) sum += std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
  }
  return sum;
}

}  // namespace

Split split_of(const StepTimes& step) {
  std::vector<Span> blocked{step.wait};
  std::vector<Span> calls;
  for (const BucketTimes& bucket : step.buckets) {
    if (bucket.on_training_thread) blocked.push_back(bucket.hook);
    calls.insert(calls.end(), bucket.calls.begin(), bucket.calls.end());
  }
  blocked = united(std::move(blocked));
  const double waited = total(blocked);
  const double communication = common(blocked, united(std::move(calls)));
  return {step.seconds - waited, communication, waited - communication};
}

StepRecorder::StepRecorder() { gradwire::trace::set_sink(&StepRecorder::on_event, this); }

StepRecorder::~StepRecorder() { gradwire::trace::set_sink(nullptr, nullptr); }

double StepRecorder::now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

// The buckets of a step are known only as they come.
BucketTimes& StepRecorder::bucket(std::size_t index) {
  if (index >= step_.buckets.size()) step_.buckets.resize(index + 1);
  return step_.buckets[index];
}

void StepRecorder::begin_step() {
  const std::lock_guard lock(mutex_);
  trains = true;
  start_ = Clock::now();
  step_ = StepTimes{};
}

void StepRecorder::begin_forward() {
  const std::lock_guard lock(mutex_);
  step_.forward.begin = now();
}

void StepRecorder::begin_backward() {
  const std::lock_guard lock(mutex_);
  step_.forward.end = step_.backward.begin = now();
}

void StepRecorder::begin_optimizer() {
  const std::lock_guard lock(mutex_);
  step_.backward.end = step_.optimizer.begin = now();
  if (step_.buckets.empty()) return;
  // Buckets start in order, so the last one starts when all gradients are there.
  step_.wait = {step_.buckets.back().ready, step_.backward.end};
}

void StepRecorder::end_step() {
  const std::lock_guard lock(mutex_);
  step_.optimizer.end = step_.seconds = now();
  last_ = std::exchange(step_, {});
  const Split split = split_of(last_);
  totals_.split.compute += split.compute;
  totals_.split.communication += split.communication;
  totals_.split.hook += split.hook;
  for (const BucketTimes& bucket : last_.buckets) {
    totals_.hook_seconds += length(bucket.hook);
    totals_.sent += bucket.sent;
  }
}

StepRecorder::HookCall::HookCall(StepRecorder& recorder, std::size_t bucket, std::int64_t bytes) {
  const std::lock_guard lock(recorder.mutex_);
  running_bucket = bucket;
  depth = 0;
  BucketTimes& times = recorder.bucket(bucket);
  times.bytes = bytes;
  times.on_training_thread = trains;
  times.hook.begin = times.hook.end = recorder.now();
}

StepRecorder::HookCall::~HookCall() { running_bucket.reset(); }

void StepRecorder::hook_done(std::size_t bucket, std::int64_t sent) {
  const std::lock_guard lock(mutex_);
  BucketTimes& times = this->bucket(bucket);
  times.sent = sent;
  times.hook.end = now();
}

void StepRecorder::on_event(void* self, const gradwire::trace::Event& event) noexcept {
  const std::string_view name = event.name;
  const bool launch = name == "ddp.launch";
  const bool call = name == "group.call" && running_bucket && depth++ == 0;
  const bool done = name == "group.return" && running_bucket && --depth == 0;
  if (!launch && !call && !done) return;
  auto& recorder = *static_cast<StepRecorder*>(self);
  const std::lock_guard lock(recorder.mutex_);
  const double time = recorder.now();
  if (launch) {
    recorder.bucket(event.sequence).ready = time;
  } else if (call) {
    recorder.bucket(*running_bucket).calls.push_back({time, time});
  } else if (auto& calls = recorder.bucket(*running_bucket).calls; !calls.empty()) {
    calls.back().end = time;
  }
}

}  // namespace char_lm
