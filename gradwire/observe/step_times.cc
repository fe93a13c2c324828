// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/step_times.h"

#include <algorithm>

namespace gradwire::observe {
namespace {

std::int64_t length(const Span& span) { return span.end - span.begin; }

// The same times as spans that are in order and do not touch.
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

std::int64_t total(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += length(span);
  return sum;
}

// The time that lies in both of two lists of united spans.
std::int64_t common(const std::vector<Span>& these, const std::vector<Span>& those) {
  std::int64_t sum = 0;
  std::size_t first = 0;
  for (const Span& a : these) {
    while (first < those.size() && those[first].end < a.begin) ++first;
    for (std::size_t i = first; i < those.size() && those[i].begin < a.end; ++i)
      sum += std::max<std::int64_t>(0, std::min(a.end, those[i].end) - std::max(a.begin, those[i].begin));
  }
  return sum;
}

std::vector<Span> waits_for_averages(const StepTimes& step) {
  std::vector<Span> waits = step.earlier_waits;
  waits.push_back(step.wait);
  return waits;
}

// When the first pass began; the end of a step without one.
std::int64_t first_pass(const StepTimes& step) {
  if (step.forward.begin != 0) return step.forward.begin;
  return step.backward.begin != 0 ? step.backward.begin : step.whole.end;
}

}  // namespace

Split split_of(const StepTimes& step) {
  std::vector<Span> blocked = waits_for_averages(step);
  std::vector<Span> calls = step.waits;
  if (step.buckets.empty()) calls.insert(calls.end(), blocked.begin(), blocked.end());
  blocked.insert(blocked.end(), step.waits.begin(), step.waits.end());
  for (const CallTimes& call : step.calls) {
    blocked.push_back(call.span);
    calls.push_back(call.span);
  }
  for (const BucketTimes& bucket : step.buckets) {
    for (const CallTimes& call : bucket.calls) calls.push_back(call.span);
    calls.insert(calls.end(), bucket.waits.begin(), bucket.waits.end());
    if (bucket.lane >= 0 || bucket.run.end == 0) continue;
    blocked.push_back({bucket.run.begin, std::min(bucket.returned, bucket.run.end)});
    // A call that was asynchronous goes on until the average is there.
    if (!bucket.calls.empty()) calls.push_back({std::min(bucket.returned, bucket.run.end), bucket.run.end});
  }
  blocked = united(std::move(blocked));
  const std::int64_t waited = total(blocked);
  const std::int64_t communication = common(blocked, united(std::move(calls)));
  return {length(step.whole) - waited, communication, waited - communication};
}

void add_step(StepTotals& totals, const StepTimes& step) {
  ++totals.steps;
  totals.whole += length(step.whole);
  totals.forward += length(step.forward);
  const std::int64_t waited = total(waits_for_averages(step));
  totals.backward += length(step.backward) - waited;
  totals.wait += waited;
  totals.rest += length(step.rest) + first_pass(step) - step.whole.begin;
  const Split split = split_of(step);
  totals.split.compute += split.compute;
  totals.split.communication += split.communication;
  totals.split.hook += split.hook;
  for (const CallTimes& call : step.calls) totals.call_bytes += call.bytes;
  for (const BucketTimes& bucket : step.buckets) {
    if (bucket.run.end != 0) totals.hook += length(bucket.run);
    totals.sent += bucket.sent;
    for (const CallTimes& call : bucket.calls) totals.call_bytes += call.bytes;
  }
}

}  // namespace gradwire::observe
