// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_launcher_internal.h"

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/hook_agreement_internal.h"
#include "gradwire/ddp/hook_scope_internal.h"
#include "gradwire/ddp/sparse_gradient_internal.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/network_payload.h"
#include "gradwire/process_group/watched_call_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {
namespace {

thread_local const Failure* failure_of_lane = nullptr;

// Waits for the future of a hook on a lane, until `failure` has happened: the future may never end. Throws its error.
void wait_on_lane(const Future& future, const Failure& failure) {
  failure_of_lane = &failure;
  const InterruptCheckScope ends([]() noexcept { return failure_of_lane->happened(); });
  gradwire::work_from_future(future)->wait();
}

bool routed(const std::vector<LaneScope::Route>& routes, const std::shared_ptr<ProcessGroup>& group) {
  return std::any_of(routes.begin(), routes.end(), [&](const auto& route) { return route.original == group; });
}

// `body`: a hook from its beginning to its result. Where a collective of the hook failed, and what the hook ends with
// does not say how, as a future that Python's then() made does not, throws the error of the collective.
template <class Body>
at::Tensor with_errors_of_calls(const LaneScope& scope, const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    if (scope.error() != nullptr) std::rethrow_exception(scope.error());
    throw;
  }
}

// Makes the current stream of the bucket's device wait until the gradients are in the bucket.
void follow_gradients(const BucketJob& job) {
  job.filled.wait();
  keep_for_current_stream(job.buffer);
  keep_for_current_stream(job.sparse);
}

at::Tensor divided(const BucketJob& job) {
  at::Tensor buffer = job.buffer;
  if (job.divide) buffer.div_(job.divisor);
  return buffer;
}

std::shared_ptr<Work> start_plain(const BucketJob& job, ProcessGroup& group, bool async) {
  AllReduceOptions options;
  options.async = async;
  options.op = job.op;
  if (async) options.tag = job.tag;
  return group.all_reduce({job.buffer}, options);
}

at::Tensor reduce_sparse(const BucketJob& job, ProcessGroup& group, const CallTag& tag) {
  const at::Tensor& parameter = job.layout->parameters.front();
  return average_sparse(group, job.sparse, parameter.sizes(), parameter.options(), job.divisor, tag);
}

std::uint64_t bytes_of(const BucketJob& job) {
  const at::Tensor& tensor = job.buffer.defined() ? job.buffer : job.sparse;
  if (!tensor.defined()) return 0;
  return tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
}

const char* name_of_hook(const BucketJob& job) {
  return job.hook != nullptr ? job.hook->traits().name.c_str() : "all_reduce";
}

// While it exists, this thread runs the reduction of a bucket: the points bucket.begin and bucket.return, and the
// ranges "gradwire:bucket K" and "gradwire:hook NAME" in a profile.
class WatchedBucket final {
 public:
  WatchedBucket(const BucketJob& job, const ProcessGroup& group, int lane, std::uint64_t ddp)
      : job_(job),
        group_(group),
        lane_(lane),
        ddp_(ddp),
        watched_(trace::watched()),
        sent_before_(watched_ ? network_payload_bytes(group) : 0),
        bucket_([&] { return concat("gradwire:bucket ", job.bucket()); }),
        hook_(job.hook == nullptr ? ProfiledRange()
                                  : ProfiledRange([&] { return concat("gradwire:hook ", name_of_hook(job)); })) {
    trace::point("bucket.begin", group.rank(), job.bucket(), {.kind = ddp, .lane = lane, .word = name_of_hook(job)});
  }
  ~WatchedBucket() {
    if (!watched_) return;
    const std::uint64_t sent = network_payload_bytes(group_) - sent_before_;
    trace::point("bucket.return", group_.rank(), job_.bucket(), {.kind = ddp_, .sent = sent, .lane = lane_});
  }
  WatchedBucket(const WatchedBucket&) = delete;
  WatchedBucket& operator=(const WatchedBucket&) = delete;

 private:
  const BucketJob& job_;
  const ProcessGroup& group_;
  const int lane_;
  const std::uint64_t ddp_;
  const bool watched_;
  const std::uint64_t sent_before_;
  const ProfiledRange bucket_;
  const ProfiledRange hook_;
};

}  // namespace

BucketLauncher::BucketLauncher(std::shared_ptr<ProcessGroup> group, Failure& failure, const void* owner)
    : group_(std::move(group)), failure_(failure), owner_(owner) {}

BucketLauncher::~BucketLauncher() {
  lanes_.clear();  // joins the threads before the objects that they use are destroyed
}

void BucketLauncher::start(int lanes) {
  if (lanes == 0) routes_here_.push_back({group_, failure_.duplicate(group_)});
  use_lanes(lanes);
}

void BucketLauncher::use_lanes(int lanes) {
  for (int number = static_cast<int>(lanes_.size()); number < lanes; ++number) {
    std::vector<LaneScope::Route> routes{{group_, failure_.duplicate(group_)}};
    lanes_.push_back(std::make_unique<Lane>(number, std::move(routes)));
  }
  used_lanes_ = lanes;
}

void BucketLauncher::duplicate_groups_of(const CommHook& hook) {
  for (const auto& named : hook.traits().groups) {
    if (named == group_) continue;
    for (auto& lane : lanes_) {
      if (routed(lane->routes(), named)) continue;  // an earlier hook named it too
      std::shared_ptr<ProcessGroup> duplicate = failure_.duplicate(named);
      if (duplicate == nullptr) {
        throw UnsupportedError(
            concat("The hook '", hook.traits().name, "' names the group '", named->group_name(), "' (", named->name(),
                   "), which cannot be duplicated; make DistributedDataParallel with lanes = 0 for it."));
      }
      auto routes = lane->routes();
      routes.push_back({named, duplicate});
      lane->set_routes(std::move(routes));
    }
    if (!routes_here_.empty() && !routed(routes_here_, named)) {
      const std::shared_ptr<ProcessGroup> duplicate = failure_.duplicate(named);
      // Without a duplicate the hook's calls and the user's own calls share one order: both come from this thread.
      routes_here_.push_back({named, duplicate != nullptr ? duplicate : named});
    }
  }
}

int BucketLauncher::lanes_for(const CommHook* hook) const noexcept {
  return hook != nullptr && !hook->traits().parallel_safe ? std::min(used_lanes_, 1) : used_lanes_;
}

void BucketLauncher::expect(std::size_t buckets) {
  under_way_.clear();
  filled_ = {};
  MutexLock lock(results_mutex_);
  results_.clear();
  results_.resize(buckets);
}

void BucketLauncher::launch(BucketJob job) {
  trace::point("ddp.launch", group_->rank(), job.bucket(), {.kind = number(), .bytes = bytes_of(job)});
  job.filled.record();
  filled_.add_streams_of(job.filled);
  const int lanes = lanes_for(job.hook.get());
  if (lanes == 0) {
    const std::shared_ptr<CommHook> hook = job.hook;
    return naming_hook(hook.get(), group_->rank(), [&] { run_here(std::move(job)); });
  }
  Lane& lane = *lanes_[job.bucket() % static_cast<std::size_t>(lanes)];
  auto shared = std::make_shared<const BucketJob>(std::move(job));
  lane.submit(
      [this, &lane, job = std::move(shared), state = at::ThreadLocalState()] {
        const at::ThreadLocalStateGuard caller(state);
        run_on_lane(*job, lane);
      },
      running_);
}

void BucketLauncher::wait_until_filled() {
  filled_.record();
  filled_.wait_on_host();
}

void BucketLauncher::wait() {
  const c10::NoGradGuard no_grad;
  for (const UnderWay& started : std::exchange(under_way_, {})) {
    naming_hook(started.job.hook.get(), group_->rank(), [&] { keep(started.job, end_of(started)); });
  }
  running_.wait_unless_interrupted();
}

bool BucketLauncher::ended_on_devices() {
  MutexLock lock(results_mutex_);
  return std::all_of(results_.begin(), results_.end(),
                     [](const BucketResult& result) { return result.reduced.ended(); });
}

std::vector<BucketResult> BucketLauncher::take_results() {
  std::vector<BucketResult> results;
  {
    MutexLock lock(results_mutex_);
    results.swap(results_);
  }
  for (const BucketResult& result : results) {
    result.reduced.wait();
    keep_for_current_stream(result.average);
  }
  return results;
}

void BucketLauncher::give_up() {
  running_.wait();
  under_way_.clear();
  take_results();
}

void BucketLauncher::run_on_lane(const BucketJob& job, Lane& lane) {
  if (failure_.happened()) return;
  const observe::CallerLine caller(job.caller);
  const auto failed = [&] {
    failure_.report(with_hook_named(std::current_exception(), job.hook.get(), group_->rank()),
                    concat("the reduction of bucket ", job.bucket()));
  };
  try {
    c10::OptionalStreamGuard on_stream;
    if (!job.device().is_cpu()) on_stream.reset_stream(lane.stream(job.device()));
    try {
      keep(job, reduce_on_lane(job, lane));
    } catch (...) {
      failed();
    }
    mark_reduced(job);  // after an error too: queued work of the stream may still write into the bucket
  } catch (...) {
    failed();
  }
}

at::Tensor BucketLauncher::reduce_on_lane(const BucketJob& job, Lane& lane) const {
  const c10::NoGradGuard no_grad;
  const LaneScope scope(lane.routes(), job.tag);
  follow_gradients(job);
  if (job.buffer.defined() && job.compare_hooks) require_same_hooks(lane.group(), job.hook.get());
  const WatchedBucket watched(job, lane.group(), lane.number(), number());
  if (!job.buffer.defined()) return reduce_sparse(job, lane.group(), {});
  if (job.hook == nullptr) {
    start_plain(job, lane.group(), /*async=*/false)->wait();
    return divided(job);
  }
  GradBucket argument = argument_of(job, lane.group());
  const HookScope in_hook(owner_);
  return with_errors_of_calls(scope, [&] {
    const Future future = run_hook(*job.hook, argument);
    wait_on_lane(future, failure_);
    return checked(job, tensor_of(*future));
  });
}

// PyTorch's model: a hook of one collective is started here, and wait() waits for it. On a device all of the reduction
// is queued here, on a stream of its own, and the CPU waits for nothing.
void BucketLauncher::run_here(BucketJob job) {
  const observe::CallerLine caller(job.caller);
  const c10::NoGradGuard no_grad;
  c10::OptionalStreamGuard aside;
  if (!job.device().is_cpu()) aside.reset_stream(side_streams_.on(job.device()));
  follow_gradients(job);
  UnderWay started{std::move(job), {}, {}};
  try {
    at::Tensor average = reduce_here(started);
    if (average.defined()) keep(started.job, std::move(average));
  } catch (...) {
    mark_reduced(started.job);  // queued work of the stream may still write into the bucket
    throw;
  }
  mark_reduced(started.job);
  if (started.future || started.work) under_way_.push_back(std::move(started));
}

// Returns an undefined tensor when the reduction is under way: `started` holds its future or its Work then.
at::Tensor BucketLauncher::reduce_here(UnderWay& started) const {
  const BucketJob& job = started.job;
  const bool may_go_on = job.device().is_cpu();
  ProcessGroup& group = routes_here_.empty() ? *group_ : *routes_here_.front().duplicate;
  if (job.buffer.defined() && job.compare_hooks) compare_hooks_here(job, group);
  const WatchedBucket watched(job, group, -1, number());
  if (!job.buffer.defined()) return reduce_sparse(job, group, job.tag);
  if (job.hook == nullptr && !may_go_on) {
    start_plain(job, group, /*async=*/false)->wait();
    return divided(job);
  }
  if (job.hook == nullptr) {
    started.work = start_plain(job, group, /*async=*/true);
    started.future = future_or_null(*started.work);
    return {};
  }
  GradBucket argument = argument_of(job, group);
  const HookScope in_hook(owner_);
  const auto run = [&] {
    started.future = run_hook(*job.hook, argument);
    at::Tensor average = end_of(started);
    started.future.reset();
    return average;
  };
  if (!routes_here_.empty()) {
    const LaneScope scope(routes_here_, job.tag);
    return with_errors_of_calls(scope, run);
  }
  if (!may_go_on || !job.hook->traits().single_collective) return run();
  started.future = run_hook(*job.hook, argument);
  return {};
}

void BucketLauncher::compare_hooks_here(const BucketJob& job, ProcessGroup& group) const {
  if (routes_here_.empty()) return require_same_hooks(group, job.hook.get());
  const LaneScope with_tags(routes_here_, job.tag);
  require_same_hooks(group, job.hook.get());
}

at::Tensor BucketLauncher::end_of(const UnderWay& started) const {
  if (started.future) {
    gradwire::work_from_future(started.future)->wait();
  } else {
    started.work->wait();
  }
  // A collective writes in place. The future of a user's group may hold any value, or none.
  if (started.job.hook == nullptr) return divided(started.job);
  return checked(started.job, tensor_of(*started.future));
}

GradBucket BucketLauncher::argument_of(const BucketJob& job, ProcessGroup& group) const {
  return {job.layout, job.buffer, group, job.divisor, job.is_last, job.tag.iteration, job.joined, job.absent};
}

at::Tensor BucketLauncher::checked(const BucketJob& job, at::Tensor result) const {
  const at::Tensor& buffer = job.buffer;
  if (result.defined() && result.layout() == at::kStrided && result.sizes() == buffer.sizes() &&
      result.scalar_type() == buffer.scalar_type() && result.device() == buffer.device()) {
    return result.is_contiguous() ? result : result.contiguous();
  }
  std::string got = "an undefined tensor";
  if (result.defined()) {
    const bool dense = result.layout() == at::kStrided;
    got = concat(dense ? "" : concat("a tensor of layout ", result.layout(), ", "), result.scalar_type(),
                 result.sizes(), " on ", result.device());
  }
  throw InvalidArgument(concat("The hook '", job.hook->traits().name, "' returned ", got, " for bucket ", job.bucket(),
                               " on rank ", group_->rank(), "; it must return ", buffer.scalar_type(), buffer.sizes(),
                               " on ", buffer.device(), ", like the bucket's buffer."));
}

void BucketLauncher::keep(const BucketJob& job, at::Tensor average) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& buffer = job.buffer;
  if (job.keep_in_buffer && buffer.defined() && !average.is_same(buffer)) {
    if (average.data_ptr() != buffer.data_ptr()) buffer.copy_(average);
    average = buffer;
  }
  trace::point("bucket.end", group_->rank(), job.bucket(), {.kind = number()});
  MutexLock lock(results_mutex_);
  results_[job.bucket()].average = std::move(average);
  results_[job.bucket()].end = std::chrono::steady_clock::now();
}

void BucketLauncher::mark_reduced(const BucketJob& job) {
  StreamFence reduced;
  reduced.add_current(job.device());
  reduced.record();
  MutexLock lock(results_mutex_);
  results_[job.bucket()].reduced = std::move(reduced);
}

}  // namespace gradwire::internal
