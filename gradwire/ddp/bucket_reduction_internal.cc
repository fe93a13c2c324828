// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/bucket_reduction_internal.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_scope_internal.h"
#include "gradwire/ddp/step_agreement_internal.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/staged_call_internal.h"

namespace gradwire::internal {

BucketReduction::BucketReduction(std::shared_ptr<ProcessGroup> group, std::vector<at::Device> devices, Failure& failure,
                                 const void* owner, Options options)
    : group_(std::move(group)),
      devices_(std::move(devices)),
      group_multiplies_(group_->multiplies_as_it_sums()),
      options_(options),
      owner_(owner),
      launcher_(group_, failure, owner),
      divisor_(group_->size()) {}

void BucketReduction::start(bool can_duplicate) {
  if (can_duplicate) launcher_.start(options_.lanes);
  started_ = true;
  if (hook_) launcher_.duplicate_groups_of(*hook_.get());
}

bool BucketReduction::use_lanes(int chosen) {
  if (std::exchange(chosen_lanes_, chosen) == chosen) return false;
  const int lanes = chosen != 0 ? chosen : options_.lanes;
  if (lanes < 1 || lanes > kMaxLanes) {
    throw InvalidArgument(concat("The hook '", hook_name(), "' chose ", lanes, " lanes on rank ", group_->rank(),
                                 "; it must choose 1 to ", kMaxLanes, "."));
  }
  launcher_.use_lanes(lanes);
  if (hook_) launcher_.duplicate_groups_of(*hook_.get());
  return true;
}

void BucketReduction::set_first_hook(std::shared_ptr<CommHook> hook, const Iteration& iteration) {
  hook_.set_first(std::move(hook), iteration);
  if (!started_) return;
  try {
    launcher_.duplicate_groups_of(*hook_.get());
  } catch (...) {
    hook_.unset();
    throw;
  }
}

bool BucketReduction::adopt_hook(std::uint32_t iteration) {
  if (!hook_.adopt(iteration)) return false;
  if (hook_ && started_) launcher_.duplicate_groups_of(*hook_.get());
  return true;
}

double BucketReduction::factor() const noexcept {
  return !hook_ && !group_multiplies_ && !options_.divides_after ? 1.0 / divisor_ : 1.0;
}

void BucketReduction::launch(const BucketStore& store, std::size_t bucket, BucketFiller::Filling filling,
                             std::vector<std::size_t> absent, const Iteration& iteration) {
  const BucketStore::Bucket& held = store.bucket(bucket);
  BucketJob job;
  job.layout = held.layout;
  job.buffer = held.buffer;
  job.sparse = std::move(filling.sparse);
  job.filled = std::move(filling.filled);
  job.hook = hook_.get();
  // A rank that has not replaced its hook makes another call here: the tags of the two calls differ.
  job.compare_hooks = hook_.begins_in(iteration.number()) && bucket == store.first_dense_bucket();
  job.op = group_multiplies_ && !options_.divides_after ? ReduceOp::premul_sum(1.0 / divisor_) : ReduceOp::sum();
  job.divide = options_.divides_after;
  job.keep_in_buffer = options_.keeps_in_buffer;
  job.divisor = divisor_;
  job.is_last = bucket == store.last_dense_bucket();
  job.joined = iteration.joined();
  job.absent = std::move(absent);
  job.tag = {.iteration = iteration.number(),
             .bucket = static_cast<std::uint16_t>(bucket),
             .stage = 0,
             .hook = hook_.hooks_before()};
  job.caller = caller_;
  launcher_.launch(std::move(job));
}

void BucketReduction::wait(ProcessGroup& control) {
  launcher_.wait();
  // A graph's work does not run while it is captured, and runs without this object later.
  if (devices_.empty() || is_captured()) return;
  end_step_together(control, [this] {
    // The device first: a call that failed between the two questions would end there as if all was well.
    const bool ended = launcher_.ended_on_devices();
    require_well(*group_);
    return ended;
  });
}

void BucketReduction::end_iteration(const std::vector<std::string>& unused) {
  if (!hook_) return;
  const c10::NoGradGuard no_grad;
  const HookScope in_hook(owner_);
  if (!unused.empty()) hook_->revert_unused(unused);
  hook_->end_iteration();
}

bool BucketReduction::is_captured() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const at::Device& device) { return gradwire::internal::is_captured(device); });
}

void BucketReduction::require_capturable(GraphKind graph, const Iteration& iteration) const {
  if (devices_.empty() || !is_captured()) return;
  std::string why;
  if (hook_) {
    why = concat("it has the hook '", hook_name(), "'");
  } else if (graph != GraphKind::every_parameter) {
    why = "find_unused_parameters or static_graph is set";
  } else if (iteration.number() < 2) {
    why = concat("it has run ", iteration.number(), " iterations");
  } else {
    return;
  }
  throw UnsupportedError(
      concat("A step of DistributedDataParallel on rank ", group_->rank(), " is captured into a CUDA graph, but ", why,
             ". Such a graph may hold plain averaging alone, without a hook, find_unused_parameters and static_graph, "
             "and only after two iterations, in which the buckets get their order. Run the step without capture."));
}

}  // namespace gradwire::internal
