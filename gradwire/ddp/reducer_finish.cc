// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer at the end of an iteration: it writes the averages into the gradients.
#include <algorithm>
#include <string>

#include "gradwire/base/trace.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/unused_gradients_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {

// Called at the end of the backward pass in which the last bucket became ready.
void Reducer::finish() {
  MutexLock lock(mutex_);
  if (!iteration_.expected()) return;
  // An iteration of other ranks' is no step of a rank that has joined.
  const bool is_own = !iteration_.joined();
  if (is_own) trace::point("ddp.wait", group_->rank(), iteration_.number());
  std::vector<BucketResult> results;
  if (!idle()) {
    results = await_results();
    for (std::size_t bucket = 0; bucket < results.size(); ++bucket) intake_.write_back(bucket, results[bucket].average);
    try {
      intake_.restore_unused();
      if (leader_ >= 0) follow_gradients(*control_, unused_anywhere(), leader_, iteration_.joined());
    } catch (...) {
      fail_and_throw("the exchange of which parameters were used");
    }
    try {
      std::vector<std::string> unused;
      for (const std::size_t parameter : intake_.unused_anywhere()) unused.push_back(store_.name(parameter));
      reduction_.end_iteration(unused);
    } catch (...) {
      fail_and_throw("the hook's end of the iteration");
    }
  } else {
    intake_.settle_alone();
  }
  outer_pass_.end_iteration_in(current_backward_pass());
  end_iteration(results);
  if (is_own) trace::point("ddp.finished", group_->rank(), iteration_.number());
}

std::vector<at::Tensor> Reducer::unused_anywhere() const {
  std::vector<at::Tensor> unused;
  for (const std::size_t parameter : intake_.unused_anywhere()) unused.push_back(store_.parameter(parameter));
  return unused;
}

std::vector<BucketResult> Reducer::await_results() {
  const ProfiledRange range([] { return "gradwire:wait for buckets"; });
  if (!failure_.happened()) {
    try {
      const std::shared_ptr<WaitTime> own = WaitClock::time_of_thread();
      const std::shared_ptr<WaitTime>& time = own != nullptr ? own : waited_;
      // What this rank's own devices still compute is no wait for others.
      if (time != nullptr) reduction_.wait_until_filled();
      const WaitsForRanks waits(time.get());
      reduction_.wait(*control_);
    } catch (...) {
      failure_.report(std::current_exception(), "the reduction of its gradients");
    }
  }
  if (failure_.happened()) throw_failure();
  return reduction_.take_results();
}

void Reducer::end_iteration(const std::vector<BucketResult>& results) {
  const std::vector<std::size_t>& unused = intake_.end_iteration();
  if (iteration_.number() == 0) {
    arrangement_.learn(iteration_.order(), /*decides=*/group_->rank() == 0 && !idle());
  }
  if (iteration_.joined()) {
    report_.end_iteration(nullptr, {}, unused);
  } else {
    std::optional<Iteration::Clock::time_point> end;
    for (const BucketResult& result : results) end = end ? std::max(*end, result.end) : result.end;
    const DdpTimes times = iteration_.times(end);
    report_.end_iteration(&times, iteration_.order(), unused);
  }
  iteration_.end();
  begin_iteration();
}

}  // namespace gradwire::internal
