// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer takes gradients from autograd into buckets, reduces the buckets over the ranks and writes the averages
// back.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/ddp/accumulator_hook_internal.h"
#include "gradwire/ddp/bucket_launcher_internal.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/failure_internal.h"
#include "gradwire/ddp/iteration_internal.h"
#include "gradwire/ddp/logging_data.h"
#include "gradwire/ddp/parameter_use_internal.h"
#include "gradwire/ddp/reduction_report_internal.h"
#include "gradwire/ddp/reduction_shape.h"

namespace gradwire::internal {

struct ReducerOptions {
  bool gradient_as_bucket_view = false;
  BucketCaps caps = bucket_caps();
  int lanes = 1;  // 0: hooks run on the thread of the backward pass
  // Whether a hook may choose other caps and another number of lanes: the user has given none.
  bool free_caps = false;
  bool free_lanes = false;
  bool same_bits = false;  // as ShapeFreedom
  GraphKind graph = GraphKind::every_parameter;
  std::function<void(const std::exception_ptr&)> rethrow = {};  // as DdpOptions::rethrow
  // Mixed precision: the dtype of the buckets of real floating-point parameters. Sums are divided after the reduction.
  std::optional<at::ScalarType> bucket_dtype;
  // Mixed precision: called once in each backward pass, local ones included, at the first gradient.
  std::function<void()> on_pass;
};

// The calls in an iteration: before_forward() -> expect_backward() -> on_gradient() for each parameter -> finish().
// Autograd calls finish() at the end of the pass in which the last bucket became ready. docs/architecture.md has the
// picture. On a rank that has joined (join.h): before_forward() -> shadow_backward().
//
// Averages without a hook: each rank multiplies its gradients by 1/N, then the products are summed in rank order.
// Groups that can multiply in the reduction (premul_sum, with the same bits) do so. Over others the Reducer multiplies
// in the copy into the bucket, or, when there is no copy, in a separate pass.
//
// A gradient that autograd made in other memory is copied into its slot, and the slot becomes .grad: permanently with
// gradient_as_bucket_view, else as a loan (slot_loan_internal.h). So averages are not copied back, and gradients that
// accumulate are not copied at all. Gradients on devices are not lent: without gradient_as_bucket_view their averages
// are copied back.
//
// Threads: on_gradient() and finish() run on autograd's threads, the other methods on the user's threads; one lock
// serializes them. Hooks run on lanes without that lock, or on the thread of the backward pass under the lock. The
// questions (const methods) never take the lock, so hooks may ask them.
class Reducer final : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options);
  // Removes the autograd hooks. Aborts an unfinished reduction, so that the other ranks do not wait for it.
  ~Reducer();

  // Puts a hook on every parameter's gradient. Call attach() again after the dtypes of the parameters have changed.
  void attach() GRADWIRE_EXCLUDES(mutex_);

  // Makes the duplicates of the group: one for control, and one for each lane. Collective; called once.
  void start() GRADWIRE_EXCLUDES(mutex_);
  // Allocates the memory of the buckets, after start(). Collective; called at most once. Without this call,
  // before_forward() allocates the memory.
  void prepare_memory() GRADWIRE_EXCLUDES(mutex_);
  bool started() const noexcept { return control_ != nullptr; }
  // The group for DDP's own calls. Valid after start().
  ProcessGroup& control() const noexcept { return *control_; }

  // Ends this object before it is destroyed, for a DDP object that goes on with another Reducer: gives up an unfinished
  // reduction, as the destructor does, and moves the gradients out of the buckets. Not collective.
  void retire() GRADWIRE_EXCLUDES(mutex_);

  // Returns one more duplicate of the group, or the group itself when it cannot be duplicated. Errors of this object
  // abort the result. Collective.
  std::shared_ptr<ProcessGroup> another_group();

  // Whether this rank is the only one of a gradwire group, so that there is no communication.
  bool alone() const noexcept { return alone_; }

  // Sets the first hook. Collective in the groups that the hook names. Throws InvalidArgument when there is a hook
  // already, when a backward pass was synchronized already, and when a backward pass runs (a hook makes the call).
  void set_hook(std::shared_ptr<CommHook> hook) GRADWIRE_EXCLUDES(mutex_);

  // Uses `hook` (null: plain averaging) from the next before_forward() on. That call is collective in the groups that
  // the hook names. Throws InvalidArgument within a backward pass, also when a hook makes the call.
  void replace_hook(std::shared_ptr<CommHook> hook) GRADWIRE_EXCLUDES(mutex_);

  // Throws InvalidArgument when a hook of this object runs on this thread: the operation `what` would wait for the
  // hook.
  void require_outside_hook(const char* what) const;

  // Prepares a reduction. The first two calls are collective: they allocate the memory and agree on the order of the
  // buckets. Throws the first failure again. Throws InvalidArgument when the reduction before did not finish, with the
  // names of the parameters that got no gradient.
  void before_forward() GRADWIRE_EXCLUDES(mutex_);
  // Sets the participants of the next iteration: the divisor of sums, and whether a rank takes part for the first time.
  // The same on all ranks.
  void set_participants(int divisor, bool new_rank) GRADWIRE_EXCLUDES(mutex_);
  // The next backward pass is synchronized, and so is every pass that goes through one of `outputs`.
  void expect_backward(const std::vector<at::Tensor>& outputs) GRADWIRE_EXCLUDES(mutex_);
  // Replaces the backward pass on a rank that has joined: takes part in the other ranks' passes with zeros, and gets
  // the averages. Throws what a backward pass throws.
  void shadow_backward() GRADWIRE_EXCLUDES(mutex_);

  // Sets the order of the buckets; else the first iteration finds the order. Takes effect at the next before_forward(),
  // which uses the order of rank 0. Throws InvalidArgument when `names` is not an order of the parameters, and when a
  // backward pass was synchronized already.
  void set_bucket_order(const std::vector<std::string>& names) GRADWIRE_EXCLUDES(mutex_);

  // Questions, for tests and logs. Any thread may ask them, also a hook.
  std::uint32_t iterations() const { return report_.iterations(); }
  BucketPlan plan() const { return report_.plan(); }
  // The names of the parameters in the order of their buckets, as rank 0 found it; empty before that.
  std::vector<std::string> bucket_order() const { return report_.bucket_order(); }
  // The sum of network_payload_bytes() over all groups that carry gradients or DDP's own calls.
  std::uint64_t payload_bytes() const { return failure_.payload_bytes(); }
  void report(DdpLoggingData& data) const;

 private:
  // The state of a bucket while gradients are stored into it.
  struct Filling {
    StreamFence filled;  // the streams that wrote the gradients
    at::Tensor sparse;   // this rank's gradient of a sparse bucket; undefined: no entries
  };

  void attach_hooks() GRADWIRE_REQUIRES(mutex_);
  void on_output() GRADWIRE_EXCLUDES(mutex_);
  void begin_pass(std::optional<std::size_t> parameter) GRADWIRE_REQUIRES(mutex_);
  bool pass_reaches(std::size_t parameter) const GRADWIRE_REQUIRES(mutex_);
  void end_of_learning() GRADWIRE_EXCLUDES(mutex_);
  void on_gradient(std::size_t parameter) GRADWIRE_EXCLUDES(mutex_);
  [[noreturn]] void refuse_second_gradient(std::size_t parameter) const GRADWIRE_REQUIRES(mutex_);
  void take_gradient(std::size_t parameter) GRADWIRE_REQUIRES(mutex_);
  void take_absent(std::size_t parameter) GRADWIRE_REQUIRES(mutex_);
  void store_gradient(std::size_t parameter) GRADWIRE_REQUIRES(mutex_);
  void store_zeros(std::size_t parameter) GRADWIRE_REQUIRES(mutex_);
  void store_sparse(std::size_t parameter) GRADWIRE_REQUIRES(mutex_);
  void require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const
      GRADWIRE_REQUIRES(mutex_);
  void warn_of_graph(const at::Tensor& grad) GRADWIRE_REQUIRES(mutex_);
  void launch_ready() GRADWIRE_REQUIRES(mutex_);
  bool launch_next() GRADWIRE_REQUIRES(mutex_);
  BucketJob job_of(std::size_t bucket) GRADWIRE_REQUIRES(mutex_);
  void finish() GRADWIRE_EXCLUDES(mutex_);
  std::vector<BucketResult> await_results() GRADWIRE_REQUIRES(mutex_);
  void end_on_devices() GRADWIRE_REQUIRES(mutex_);
  bool is_captured() const;
  void require_capturable() const GRADWIRE_REQUIRES(mutex_);
  void write_back(std::size_t bucket, const at::Tensor& average) GRADWIRE_REQUIRES(mutex_);
  void end_iteration(const std::vector<BucketResult>& results) GRADWIRE_REQUIRES(mutex_);
  void begin_iteration() GRADWIRE_REQUIRES(mutex_);
  void rebuild() GRADWIRE_REQUIRES(mutex_);
  void arrange_anew(BucketPlan plan) GRADWIRE_REQUIRES(mutex_);
  ShapeFreedom freedom() const GRADWIRE_REQUIRES(mutex_);
  void follow_shape() GRADWIRE_REQUIRES(mutex_);
  void use_lanes(int lanes) GRADWIRE_REQUIRES(mutex_);
  void adopt_replacement() GRADWIRE_REQUIRES(mutex_);
  void use_hook(std::shared_ptr<CommHook> hook) GRADWIRE_REQUIRES(mutex_);
  void follow_parameters() GRADWIRE_REQUIRES(mutex_);
  void require_finished() const GRADWIRE_REQUIRES(mutex_);
  void require_between_passes(const char* what) const;
  void watch_pass() GRADWIRE_REQUIRES(mutex_);
  void watch_outer_pass() GRADWIRE_REQUIRES(mutex_);
  void backward_failed(const std::exception_ptr& error) GRADWIRE_EXCLUDES(mutex_);
  void leave_buckets() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void throw_failure() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void fail_and_throw(const std::string& where) GRADWIRE_REQUIRES(mutex_);
  bool rebuilds() const noexcept { return options_.graph != GraphKind::searched; }
  bool divides_after() const noexcept { return options_.bucket_dtype.has_value(); }
  bool idle() const noexcept GRADWIRE_REQUIRES(mutex_) { return alone_ && hook_ == nullptr; }

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const bool group_multiplies_;            // ProcessGroup::multiplies_as_it_sums()
  const bool alone_;                       // one rank over one of gradwire's own backends: nothing to communicate
  const std::vector<at::Device> devices_;  // other than the CPU and those that the group stages
  OwnerProcess owner_;
  Failure failure_;
  std::atomic<bool> reducing_{false};      // the synchronized backward pass has begun
  std::shared_ptr<ProcessGroup> control_;  // set once, by start(), before any pass

  mutable Mutex mutex_;
  BucketStore store_ GRADWIRE_GUARDED_BY(mutex_);
  ReductionReport report_;  // has a lock of its own
  ParameterUse use_ GRADWIRE_GUARDED_BY(mutex_);
  BucketLauncher launcher_ GRADWIRE_GUARDED_BY(mutex_);
  Iteration iteration_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Filling> fillings_ GRADWIRE_GUARDED_BY(mutex_);  // by bucket
  std::vector<AccumulatorHook> hooks_on_parameters_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<CommHook> hook_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint32_t caller_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // the line of the last forward pass
  // The hook that the next before_forward() begins to use.
  std::optional<std::shared_ptr<CommHook>> replacement_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint8_t hooks_before_ GRADWIRE_GUARDED_BY(mutex_) =
      0;  // the number of earlier hooks modulo 256; the ranks compare it
  // The first iteration of the hook: there the ranks compare their hooks. Not set before the first hook.
  std::optional<std::uint32_t> hook_since_ GRADWIRE_GUARDED_BY(mutex_);
  int divisor_ GRADWIRE_GUARDED_BY(mutex_) = 1;
  bool rebuilt_ GRADWIRE_GUARDED_BY(mutex_) = false;
  // The order in which gradients became ready in the first iteration, or the loaded order. After the rebuild: the order
  // of the buckets.
  std::vector<std::int64_t> ready_order_ GRADWIRE_GUARDED_BY(mutex_);
  bool order_loaded_ GRADWIRE_GUARDED_BY(mutex_) = false;
  // The gradients in that order, once the buckets have been rebuilt.
  std::shared_ptr<const std::vector<TensorSpec>> ordered_specs_ GRADWIRE_GUARDED_BY(mutex_);
  ReductionShape shape_ GRADWIRE_GUARDED_BY(mutex_);  // the present one
  int mixed_pass_ GRADWIRE_GUARDED_BY(mutex_) = -1;   // the last pass that called options_.on_pass
  bool warned_of_graph_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int outer_pass_ GRADWIRE_GUARDED_BY(mutex_) = -1;  // the pass through an output of forward() that runs; -1: none
  bool ended_inside_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the iteration ended in a re-entrant pass within that one
};

}  // namespace gradwire::internal
