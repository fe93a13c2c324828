// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook that measures other hooks during the first steps of a job, and goes on with the fastest. It then does the same
// with sizes of buckets and numbers of lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/reduction_shape.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// What the hook may do to gradients.
enum class HookAccuracy {
  exact,     // the bits of plain averaging
  rounding,  // rounding to 16 or 8 bits, without a memory
  any,       // also hooks that lose more: 4 bits, 1 bit, PowerSGD
};

// The options of make_auto_hook(). They must be the same on all ranks.
struct AutoHookOptions {
  // Which hooks there are to choose from when `hooks` is empty.
  HookAccuracy accuracy = HookAccuracy::rounding;
  // The hooks to choose from, as make_hook() takes them, in the order of preference: a later hook is taken only when it
  // is faster by `gain`. The job begins with the first hook. Empty: auto_hook_candidates(accuracy).
  std::vector<std::string> hooks;
  // The share of a step that a later hook must save. Where steps vary, a later hook must save more. From 0 to below 1.
  double gain = 0.01;
  // Whether the size of the buckets and the number of lanes are chosen too, where DDP can change them (ShapeFreedom).
  // Another shape than DDP's own must save more than 2 % of a step, and more than `gain`. With exact accuracy the shape
  // changes only over a group whose sums have the same bits for all shapes.
  bool shape = true;
};

// Returns the hooks that `accuracy` allows: allreduce; then bf16_compress and int8; then int4, power_sgd:rank=4 and
// one_bit.
std::vector<std::string> auto_hook_candidates(HookAccuracy accuracy);

// The times of one hook: medians over its steps, in seconds. Of each step the rank that began last counts: the others
// waited for this rank, not for the network.
struct HookTimes {
  std::string hook;
  double cost = 0;  // from the first bucket of a step to the end of its last bucket; infinite: not measured
  double step = 0;  // from the first bucket of a step to that of the next step
};

// The times of one shape with the chosen hook: medians over its steps, in seconds.
struct ShapeTimes {
  ReductionShape shape;
  double cost = 0;  // from the beginning of the forward pass to the end of the last bucket; infinite: not measured
  double step = 0;  // from the first bucket of a step to that of the next step
};

// One decision: which hook, or which shape with the hook of the decision before.
struct HookChoice {
  std::uint32_t iteration = 0;      // the first iteration that uses the choice throughout
  std::string hook;                 // one of AutoHookOptions::hooks
  ReductionShape shape;             // the shape of that iteration
  std::vector<HookTimes> measured;  // by hook, in the order of AutoHookOptions::hooks
  std::vector<ShapeTimes> shapes;   // by shape, DDP's own first; empty for a decision about the hook alone
};

// The interface of the hook that make_auto_hook() makes.
class AutoHook : public CommHook {
 public:
  using CommHook::CommHook;
  // The hook that the last bucket used, and the decisions so far, oldest first. Thread-safe. The same on all ranks
  // between iterations.
  virtual std::string current() const = 0;
  virtual std::vector<HookChoice> choices() const = 0;
  // The shape that the last bucket had. Thread-safe.
  virtual ReductionShape current_shape() const = 0;
};

// Returns a hook that runs one of `options.hooks`:
//
//   1. The first three steps use the first hook, and do not count. Where a hook of the list has a longer warm-up
//      (`start` of PowerSGD, `warm_up`), as many steps as the longest one has; a turn of 2 then has no warm-up of its
//      own. So no hook compresses before its warm-up is over, and its times are those of compressing.
//   2. Each hook runs for a few steps. A hook that is far behind the best stops after one. Hooks that are near the best
//      run again. The ranks take the first hook of the list whose cost is within `gain` of the best, or within 2.5
//      times the usual distance of a step from its hook's median. With three hooks the decision falls within 29 steps;
//      with six hooks, within 41. A warm-up of more than two steps comes on top.
//   3. Where DDP can change the shape, shapes race with that hook: DDP's own buckets, buckets of 2 MiB, one bucket, and
//      twice as many lanes. The decision falls within 20 more steps. (With one hook, within 33 steps in all.)
//   4. From then on the hook watches the cost of its choice, over windows of three steps. When a window differs from
//      the first ones, and so do the two steps after it (a link has become slower, or faster), the hooks are measured
//      again, in shorter turns: with three hooks, the new choice is made about 15 steps after the change. A difference
//      is 15 % of a step after each measurement, and then four times as much as windows vary, from 6 % to 30 %. A hook
//      further down the list must save more than 3 % of a step then. When the measurement saves nothing clear, the next
//      one waits longer, 768 steps at most. A change that makes only other hooks faster, and not the chosen one, is not
//      seen. After the hooks, the shapes are measured again, within 12 more steps.
//
// All ranks decide alike, because they decide from the same times: in each step of 1 to 3, and in each third step of 4
// (in each step after a window that differs), they make one all-reduce of three numbers for each rank before the last
// bucket.
//
// Each decision is logged at the level "info" (gradwire/base/log.h) on rank 0. A hook with a memory (int4, one_bit,
// PowerSGD) begins with an empty memory in each of its turns; what its memory held at the end of a turn is lost.
//
// Buckets on a device are measured by events of the device, so the CPU, which is ahead, waits for the last bucket of a
// step when the next step's first bucket begins. Over a group of several hosts, a hook that compresses runs between
// hosts only, as with make_hook(). `group`: null for the bucket's group.
//
// The state: "auto/version", the version of what follows; "auto/hook", the name of the current hook; "auto/race", the
// measurements; "auto/shapes" and "auto/race_of_shapes", the shapes and their measurements, once there are any; and the
// state of the current hook. Thus a job that continues from a checkpoint continues with the chosen hook.
// load_state_dict() throws InvalidArgument for a state of another version.
//
// Throws InvalidArgument for a hook that make_hook() refuses, for a hook named twice, and for a gain out of range.
std::shared_ptr<AutoHook> make_auto_hook(const AutoHookOptions& options = {},
                                         std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
