// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the buckets of a Reducer are reduced: the hook, the lanes, the divisor, and the end on devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/bucket_filler_internal.h"
#include "gradwire/ddp/bucket_launcher_internal.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/failure_internal.h"
#include "gradwire/ddp/hook_slot_internal.h"
#include "gradwire/ddp/iteration_internal.h"
#include "gradwire/ddp/parameter_use_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Averages without a hook: each rank multiplies its gradients by 1/N, then the products are summed in rank order.
// Groups that can multiply in the reduction (premul_sum, with the same bits) do so. Over others the gradients are
// multiplied by factor() when they are stored.
//
// The calls in an iteration: begin() -> launch() for each bucket -> wait() -> take_results(). Not thread-safe: the
// Reducer's lock guards the object.
class BucketReduction final {
 public:
  struct Options {
    int lanes = 1;  // 0: hooks run on the thread of the backward pass
    // The buckets have another dtype than the gradients: sums are divided after the reduction.
    bool divides_after = false;
    // An average must end up in the bucket's memory, also when a hook returns other memory.
    bool keeps_in_buffer = false;
  };

  // `owner`: the owner of the hooks, for HookScope. `devices`: those of the gradients on which an engine works by
  // itself, after its calls have returned. `failure` must outlive this object.
  BucketReduction(std::shared_ptr<ProcessGroup> group, std::vector<at::Device> devices, Failure& failure,
                  const void* owner, Options options);

  // Makes the duplicates of the group for the lanes, over a group that can be duplicated, and those of the groups that
  // the hook names. Collective, called once.
  void start(bool can_duplicate);
  // Uses the lanes that a hook chose (ReductionShape::lanes; 0: Options::lanes) from the next bucket on. Returns false,
  // and does nothing, when the choice is the one before. Collective; between iterations. Throws InvalidArgument for a
  // number out of range.
  bool use_lanes(int chosen);
  // The lanes that run the hook; 0: hooks run on the thread of the backward pass.
  int lanes() const noexcept { return launcher_.lanes_for(hook_.get().get()); }

  // The hook, as HookSlot says. After start() these duplicate the groups that the hook names: collective in them.
  const HookSlot& hook() const noexcept { return hook_; }
  std::string hook_name() const { return hook_ ? hook_->traits().name : std::string(); }
  void set_first_hook(std::shared_ptr<CommHook> hook, const Iteration& iteration);
  void replace_hook(std::shared_ptr<CommHook> hook) { hook_.replace_with(std::move(hook)); }
  bool adopt_hook(std::uint32_t iteration);

  // The divisor of sums, from the next iteration on. The same on all ranks.
  void set_divisor(int divisor) noexcept { divisor_ = divisor; }
  // By what gradients are multiplied when they are stored.
  double factor() const noexcept;

  // Begins an iteration of so many buckets. `caller`: the line of the forward pass, for the flight recorder.
  void begin(std::size_t buckets) { launcher_.expect(buckets); }
  void set_caller(std::uint32_t caller) noexcept { caller_ = caller; }
  // Starts the reduction of a bucket that is filled. `absent`: as GradBucket::absent(). Throws as
  // BucketLauncher::launch().
  void launch(const BucketStore& store, std::size_t bucket, BucketFiller::Filling filling,
              std::vector<std::size_t> absent, const Iteration& iteration);
  // Returns when this rank's devices have written its gradients into the buckets that were launched. Throws the error
  // of a device that failed.
  void wait_until_filled() { launcher_.wait_until_filled(); }
  // Returns when all reductions have ended on this rank, and on devices when they have ended on all ranks. Throws the
  // error of a reduction on this thread. `control`: the group for DDP's own calls.
  void wait(ProcessGroup& control);
  // Returns the results by bucket, after wait().
  std::vector<BucketResult> take_results() { return launcher_.take_results(); }
  // After take_results(): tells the hook, without autograd, that the iteration has ended. `unused`: the names of the
  // parameters that no rank used.
  void end_iteration(const std::vector<std::string>& unused);
  // After an error: waits for the lanes and their streams.
  void give_up() { launcher_.give_up(); }

  // Throws UnsupportedError when the step is captured into a CUDA graph that could not repeat it. A graph repeats the
  // work of the device, and nothing that the CPU does in a step: counting iterations, random numbers and schedules of
  // hooks, the search for unused parameters, the order of buckets.
  void require_capturable(GraphKind graph, const Iteration& iteration) const;

 private:
  bool is_captured() const;

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<at::Device> devices_;
  const bool group_multiplies_;  // ProcessGroup::multiplies_as_it_sums()
  const Options options_;
  const void* const owner_;
  HookSlot hook_;
  BucketLauncher launcher_;
  bool started_ = false;
  int chosen_lanes_ = 0;  // as in the last use_lanes()
  int divisor_;
  std::uint32_t caller_ = 0;
};

}  // namespace gradwire::internal
