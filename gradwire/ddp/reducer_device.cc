// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer on devices: the end of a step that all ranks know of, and steps in CUDA graphs.
#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/reducer_internal.h"
#include "gradwire/ddp/step_agreement_internal.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/staged_call_internal.h"

namespace gradwire::internal {

// A graph's work does not run while it is captured, and runs without this object later.
void Reducer::end_on_devices() {
  if (devices_.empty() || is_captured()) return;
  BucketLauncher& launcher = launcher_;
  end_step_together(*control_, [&] {
    // The device first: a call that failed between the two questions would end there as if all was well.
    const bool ended = launcher.ended_on_devices();
    require_well(*group_);
    return ended;
  });
}

bool Reducer::is_captured() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const at::Device& device) { return gradwire::internal::is_captured(device); });
}

// A graph repeats the work of the device, and nothing that the CPU does in a step: counting iterations, random numbers
// and schedules of hooks, the search for unused parameters, the order of buckets.
void Reducer::require_capturable() const {
  if (devices_.empty() || !is_captured()) return;
  std::string why;
  if (hook_ != nullptr) {
    why = concat("it has the hook '", hook_->traits().name, "'");
  } else if (options_.graph != GraphKind::every_parameter) {
    why = "find_unused_parameters or static_graph is set";
  } else if (iteration_.number() < 2) {
    why = concat("it has run ", iteration_.number(), " iterations");
  } else {
    return;
  }
  throw UnsupportedError(
      concat("A step of DistributedDataParallel on rank ", group_->rank(), " is captured into a CUDA graph, but ", why,
             ". Such a graph may hold plain averaging alone, without a hook, find_unused_parameters and static_graph, "
             "and only after two iterations, in which the buckets get their order. Run the step without capture."));
}

}  // namespace gradwire::internal
