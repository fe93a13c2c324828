// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer takes gradients from autograd into buckets, reduces the buckets over the ranks and writes the averages
// back: it decides when. BucketArrangement says which gradients lie in which bucket, GradientIntake brings gradients
// into buckets and averages back, and BucketReduction reduces the buckets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/backward_errors.h"
#include "gradwire/base/mutex.h"
#include "gradwire/ddp/bucket_arrangement_internal.h"
#include "gradwire/ddp/bucket_reduction_internal.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/call_guard_internal.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/delayed_reduction_internal.h"
#include "gradwire/ddp/failure_internal.h"
#include "gradwire/ddp/gradient_intake_internal.h"
#include "gradwire/ddp/iteration_internal.h"
#include "gradwire/ddp/logging_data.h"
#include "gradwire/ddp/outer_pass_internal.h"
#include "gradwire/ddp/parameter_hooks_internal.h"
#include "gradwire/ddp/parameter_use_internal.h"
#include "gradwire/ddp/reduction_report_internal.h"
#include "gradwire/ddp/shape_choice_internal.h"
#include "gradwire/ddp/unfinished_passes_internal.h"
#include "gradwire/process_group/wait_clock_internal.h"

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
  TranslateError errors = backward_errors();  // of the thread that makes the DDP
  // Mixed precision: the dtype of the buckets of real floating-point parameters. Sums are divided after the reduction.
  std::optional<at::ScalarType> bucket_dtype;
  // Mixed precision: called once in each backward pass, local ones included, at the first gradient.
  std::function<void()> on_pass;
  // The gradients that are averaged apart from the buckets; null: none are. The Reducer says when a pass is
  // synchronized. Call its set_owner() with the Reducer.
  std::shared_ptr<DelayedReduction> delayed;
};

// The calls in an iteration: before_forward() -> expect_backward() -> on_gradient() for each parameter -> finish().
// Autograd calls finish() at the end of the pass in which the last bucket became ready. docs/architecture.md has the
// picture. On a rank that has joined (join.h): before_forward() -> shadow_backward().
//
// Threads: on_gradient() and finish() run on autograd's threads, the other methods on the user's threads; one lock
// serializes them. Hooks run on lanes without that lock, or on the thread of the backward pass under the lock. The
// questions (const methods) never take the lock, so hooks may ask them.
class Reducer final : public std::enable_shared_from_this<Reducer>, public DelayedReduction::Owner, public PassOwner {
 public:
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options);
  // Removes the autograd hooks. Aborts an unfinished reduction, so that the other ranks do not wait for it.
  ~Reducer() override;

  // Puts a hook on every parameter's gradient. Call attach() again after the dtypes of the parameters have changed.
  void attach() GRADWIRE_EXCLUDES(mutex_);
  // Puts hooks on accumulators that parameters have got since the last call. Called after each forward with gradients.
  void follow_accumulators() GRADWIRE_EXCLUDES(mutex_);

  // Makes the duplicates of the group that are left to make: one for control, and one for each lane. Collective; called
  // once.
  void start() GRADWIRE_EXCLUDES(mutex_);
  // Makes the duplicate for control alone, so that ranks can compare their options, which decide on the others, before
  // start(). Collective; called once at most.
  void start_control() GRADWIRE_EXCLUDES(mutex_);
  // Allocates the memory of the buckets, after start(). Collective; called at most once. Without this call,
  // before_forward() allocates the memory.
  void prepare_memory() GRADWIRE_EXCLUDES(mutex_);
  bool started() const noexcept { return started_; }
  // The group for DDP's own calls. Valid after start_control() or start().
  ProcessGroup& control() const noexcept { return *control_; }

  // Ends this object before it is destroyed, for a DDP object that goes on with another Reducer: gives up an unfinished
  // reduction, as the destructor does, and moves the gradients out of the buckets. Not collective.
  void retire() GRADWIRE_EXCLUDES(mutex_);

  // Returns one more duplicate of the group, or the group itself when it cannot be duplicated. Errors of this object
  // abort the result. Collective.
  std::shared_ptr<ProcessGroup> another_group() GRADWIRE_EXCLUDES(mutex_);

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
  void require_outside_hook(const char* what) const { calls_.require_outside_hook(what); }

  // Prepares a reduction. The first two calls are collective: they allocate the memory and agree on the order of the
  // buckets. Throws the first failure again. Throws InvalidArgument when the reduction before did not finish, with the
  // names of the parameters that got no gradient.
  void before_forward() GRADWIRE_EXCLUDES(mutex_);
  // As PassOwner's.
  void require_pass_ended(const std::string& before) override GRADWIRE_EXCLUDES(mutex_);
  // Sets the participants of the next iteration: the divisor of sums, whether a rank takes part for the first time,
  // and, when a rank has joined, a rank that has not (else -1). Ranks that have joined take over from this rank the
  // gradients of parameters that no rank used. The same on all ranks.
  void set_participants(int divisor, bool new_rank, int leader) GRADWIRE_EXCLUDES(mutex_);
  // The next backward pass is synchronized, and so is every pass that goes through one of `outputs`.
  void expect_backward(const std::vector<at::Tensor>& outputs) GRADWIRE_EXCLUDES(mutex_);
  // Replaces the backward pass on a rank that has joined: takes part in the other ranks' passes with zeros, and gets
  // the averages. Returns the parameters that no rank used. Throws what a backward pass throws.
  std::vector<at::Tensor> shadow_backward() GRADWIRE_EXCLUDES(mutex_);

  // Sets the order of the buckets; else the first iteration finds the order. Takes effect at the next before_forward(),
  // which uses the order of rank 0. Throws InvalidArgument when `names` is not an order of the parameters, and when a
  // backward pass was synchronized already.
  void set_bucket_order(const std::vector<std::string>& names) GRADWIRE_EXCLUDES(mutex_);

  void on_delayed_gradient() override GRADWIRE_EXCLUDES(mutex_);
  [[noreturn]] void fail(const std::string& where) override GRADWIRE_EXCLUDES(mutex_);
  // Ends this object before the backward pass for which the other ranks wait, and tells them why.
  void give_up(const std::string& why) noexcept GRADWIRE_EXCLUDES(mutex_);

  // Questions, for tests and logs. Any thread may ask them, also a hook.
  std::uint32_t iterations() const { return report_.iterations(); }
  BucketPlan plan() const { return report_.plan(); }
  // The names of the parameters in the order of their buckets, as rank 0 found it; empty before that.
  std::vector<std::string> bucket_order() const { return report_.bucket_order(); }
  // The same, or the order that the next rebuild will use, where this rank knows it.
  std::vector<std::string> next_bucket_order() const { return report_.next_bucket_order(); }
  // The sum of network_payload_bytes() over all groups that carry gradients or DDP's own calls.
  std::uint64_t payload_bytes() const { return failure_.payload_bytes(); }
  void report(DdpLoggingData& data) const;
  // The error with which this object has ended; null: it has not.
  std::exception_ptr error() const { return failure_.first(); }

 private:
  void make_control() GRADWIRE_REQUIRES(mutex_);

  // Passes.
  void on_output() GRADWIRE_EXCLUDES(mutex_);
  void watch_pass() GRADWIRE_REQUIRES(mutex_);
  void watch_outer_pass() GRADWIRE_REQUIRES(mutex_);
  void begin_mixed_pass() GRADWIRE_REQUIRES(mutex_);
  bool is_passed_by() const GRADWIRE_REQUIRES(mutex_);
  void begin_pass(std::optional<std::size_t> parameter) GRADWIRE_REQUIRES(mutex_);
  void end_of_learning() GRADWIRE_EXCLUDES(mutex_);
  void backward_failed(const std::exception_ptr& error) GRADWIRE_EXCLUDES(mutex_);

  // Gradients and buckets.
  void on_gradient(std::size_t parameter) GRADWIRE_EXCLUDES(mutex_);
  void launch_ready() GRADWIRE_REQUIRES(mutex_);
  bool launch_next() GRADWIRE_REQUIRES(mutex_);
  void finish_after_pass() GRADWIRE_REQUIRES(mutex_);
  void finish() GRADWIRE_EXCLUDES(mutex_);
  std::vector<at::Tensor> unused_anywhere() const GRADWIRE_REQUIRES(mutex_);
  std::vector<BucketResult> await_results() GRADWIRE_REQUIRES(mutex_);
  void end_iteration(const std::vector<BucketResult>& results) GRADWIRE_REQUIRES(mutex_);

  // Between iterations.
  void begin_iteration() GRADWIRE_REQUIRES(mutex_);
  void follow_shape() GRADWIRE_REQUIRES(mutex_);
  void report_hook() GRADWIRE_REQUIRES(mutex_);

  // Errors.
  void leave_buckets() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void throw_failure() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void throw_failure(const std::exception_ptr& failure) GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void fail_and_throw(const std::string& where) GRADWIRE_REQUIRES(mutex_);

  // Whether there is nothing to communicate.
  bool idle() const noexcept GRADWIRE_REQUIRES(mutex_) { return alone_ && !reduction_.hook(); }
  GradientIntake::Factor factor() const noexcept GRADWIRE_REQUIRES(mutex_) {
    return idle() ? std::nullopt : GradientIntake::Factor(reduction_.factor());
  }

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const bool alone_;  // one rank over one of gradwire's own backends
  CallGuard calls_;
  Failure failure_;
  std::shared_ptr<ProcessGroup> control_;  // set once, before any pass
  bool started_ = false;                   // set once, by start(), before any pass

  mutable Mutex mutex_;
  BucketStore store_ GRADWIRE_GUARDED_BY(mutex_);
  Iteration iteration_ GRADWIRE_GUARDED_BY(mutex_);
  GradientIntake intake_ GRADWIRE_GUARDED_BY(mutex_);
  ReductionReport report_;  // has a lock of its own; before the reduction, whose hooks may ask it until they end
  BucketArrangement arrangement_ GRADWIRE_GUARDED_BY(mutex_);
  const ShapeChoice shape_choice_;
  BucketReduction reduction_ GRADWIRE_GUARDED_BY(mutex_);
  ParameterHooks parameter_hooks_ GRADWIRE_GUARDED_BY(mutex_);
  OuterPass outer_pass_ GRADWIRE_GUARDED_BY(mutex_);
  // Of the thread of the last forward pass, for which autograd's threads wait: see WaitClock.
  std::shared_ptr<WaitTime> waited_ GRADWIRE_GUARDED_BY(mutex_);
  int leader_ GRADWIRE_GUARDED_BY(mutex_) = -1;      // see set_participants()
  int mixed_pass_ GRADWIRE_GUARDED_BY(mutex_) = -1;  // the last pass that called options_.on_pass
};

}  // namespace gradwire::internal
