// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows gradients from autograd into buckets, over the ranks and back.
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

namespace gradwire::internal {

struct ReducerOptions {
  bool gradient_as_bucket_view = false;
  BucketCaps caps = bucket_caps();
  int lanes = 1;  // 0: hooks run on the thread of the backward pass
  GraphKind graph = GraphKind::every_parameter;
  std::function<void(const std::exception_ptr&)> rethrow = {};  // as DdpOptions::rethrow
  // Mixed precision: the type of the buckets of real floating-point parameters. Sums are divided after the reduction.
  std::optional<at::ScalarType> bucket_dtype;
  // Mixed precision: called once in each backward pass, local ones included, at the first gradient.
  std::function<void()> on_pass;
};

// The life of an iteration: before_forward() -> expect_backward() -> one call of on_gradient() a parameter -> finish(),
// which autograd calls at the end of the pass in which the last bucket became ready. docs/architecture.md has the
// picture. On a rank that has joined (join.h): before_forward() -> shadow_backward().
//
// Gradients are averaged so: without a hook each rank multiplies by 1/N, then the ranks' products are summed in rank
// order. Our own groups multiply in the reduction (premul_sum, same bits). Over a user's group it happens in the copy
// into the bucket or, where there is no copy, in a pass of its own.
//
// A gradient that autograd made elsewhere is copied into its slot, and the slot takes its place as .grad: for good with
// gradient_as_bucket_view, else lent (slot_loan_internal.h). So averages are not copied back, and gradients that
// accumulate are not copied at all.
//
// Threads: on_gradient() and finish() run on autograd's threads, the rest on the user's; one lock serializes them.
// Hooks run on lanes, outside that lock, or under it on the thread of the backward pass. Questions (the const
// functions) never take it, so that hooks may ask them.
class Reducer final : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options);
  // Takes the autograd hooks away. An unfinished reduction is aborted, so that the other ranks do not wait for it.
  ~Reducer();

  // Puts a hook on every parameter's gradient; again after the parameters have changed their types.
  void attach() GRADWIRE_EXCLUDES(mutex_);

  // Collective, once: makes the duplicates of the group, one for control and one a lane.
  void start() GRADWIRE_EXCLUDES(mutex_);
  // Collective, once, after start(): gets the memory of the buckets; before_forward() does it otherwise.
  void prepare_memory() GRADWIRE_EXCLUDES(mutex_);
  bool started() const noexcept { return control_ != nullptr; }
  // The group for what DDP itself has to say; after start().
  ProcessGroup& control() const noexcept { return *control_; }

  // Collective: one more duplicate of the group, or the group itself, which errors of this object abort.
  std::shared_ptr<ProcessGroup> another_group();

  // Whether there is nobody to communicate with.
  bool alone() const noexcept { return alone_; }

  // Collective in the groups that the hook names. Throws InvalidArgument when there is a hook, a backward pass was
  // synchronized already, or one runs (a hook calls it).
  void set_hook(std::shared_ptr<CommHook> hook) GRADWIRE_EXCLUDES(mutex_);

  // Another hook, null for none, from the next before_forward() on, which is collective in the groups that it names.
  // Throws InvalidArgument within a backward pass, also when a hook calls it.
  void replace_hook(std::shared_ptr<CommHook> hook) GRADWIRE_EXCLUDES(mutex_);

  // Throws InvalidArgument when a hook of this object runs on this thread: `what` would wait for that hook.
  void require_outside_hook(const char* what) const;

  // Throws the first failure again; throws when the reduction before did not finish, with the names of the parameters
  // that got no gradient. Then gets ready for another one (collective the first two times: memory, and the order of the
  // buckets).
  void before_forward() GRADWIRE_EXCLUDES(mutex_);
  // Who takes part in the next iteration: what sums are divided by, and whether a rank does for the first time; the
  // same on all ranks.
  void set_participants(int divisor, bool new_rank) GRADWIRE_EXCLUDES(mutex_);
  // The next backward pass is synchronized, and every one that comes through one of `outputs`.
  void expect_backward(const std::vector<at::Tensor>& outputs) GRADWIRE_EXCLUDES(mutex_);
  // Instead of a backward pass: takes part in the others' with zeros, and gets the averages. Throws what a backward
  // pass would.
  void shadow_backward() GRADWIRE_EXCLUDES(mutex_);

  // Begins with this order instead of finding one. Takes effect at the next before_forward(), where rank 0's counts.
  // Throws InvalidArgument when it is not an order of the parameters, or a backward pass was synchronized already.
  void set_bucket_order(const std::vector<std::string>& names) GRADWIRE_EXCLUDES(mutex_);

  // What happened so far, for tests and logs. From any thread, also in a hook.
  std::uint32_t iterations() const { return report_.iterations(); }
  BucketPlan plan() const { return report_.plan(); }
  // The names of the parameters in the order of their buckets, as rank 0 found it; empty before that.
  std::vector<std::string> bucket_order() const { return report_.bucket_order(); }
  // network_payload_bytes() of all groups that carry gradients or DDP's own calls, together.
  std::uint64_t payload_bytes() const { return failure_.payload_bytes(); }
  void report(DdpLoggingData& data) const;

 private:
  // What a bucket's gradients leave on their way into it.
  struct Filling {
    StreamFence filled;
    at::Tensor sparse;  // this rank's gradient, of a sparse bucket; undefined: no entries
  };

  void attach_hooks() GRADWIRE_REQUIRES(mutex_);
  void on_output() GRADWIRE_EXCLUDES(mutex_);
  void begin_pass(std::optional<std::size_t> parameter) GRADWIRE_REQUIRES(mutex_);
  bool pass_reaches(std::size_t parameter) const GRADWIRE_REQUIRES(mutex_);
  void end_of_learning() GRADWIRE_EXCLUDES(mutex_);
  void on_gradient(std::size_t parameter) GRADWIRE_EXCLUDES(mutex_);
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
  void write_back(std::size_t bucket, const at::Tensor& average) GRADWIRE_REQUIRES(mutex_);
  void end_iteration(const std::vector<BucketResult>& results) GRADWIRE_REQUIRES(mutex_);
  void begin_iteration() GRADWIRE_REQUIRES(mutex_);
  void rebuild() GRADWIRE_REQUIRES(mutex_);
  void adopt_replacement() GRADWIRE_REQUIRES(mutex_);
  void use_hook(std::shared_ptr<CommHook> hook) GRADWIRE_REQUIRES(mutex_);
  void follow_parameters() GRADWIRE_REQUIRES(mutex_);
  void require_finished() const GRADWIRE_REQUIRES(mutex_);
  void require_between_passes(const char* what) const;
  void watch_pass() GRADWIRE_REQUIRES(mutex_);
  void backward_failed(const std::exception_ptr& error) GRADWIRE_EXCLUDES(mutex_);
  void leave_buckets() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void throw_failure() GRADWIRE_REQUIRES(mutex_);
  [[noreturn]] void fail_and_throw(const std::string& where) GRADWIRE_REQUIRES(mutex_);
  bool rebuilds() const noexcept { return options_.graph != GraphKind::searched; }
  bool divides_after() const noexcept { return options_.bucket_dtype.has_value(); }
  bool idle() const noexcept GRADWIRE_REQUIRES(mutex_) { return alone_ && hook_ == nullptr; }

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const bool ours_;   // one of gradwire's own backends
  const bool alone_;  // one rank over one of them: nothing to communicate
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
  // Waits for the next before_forward().
  std::optional<std::shared_ptr<CommHook>> replacement_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint8_t hooks_before_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // modulo 256; the ranks compare it
  int divisor_ GRADWIRE_GUARDED_BY(mutex_) = 1;
  bool rebuilt_ GRADWIRE_GUARDED_BY(mutex_) = false;
  // Of the first iteration, or loaded; after the rebuild: of the buckets.
  std::vector<std::int64_t> ready_order_ GRADWIRE_GUARDED_BY(mutex_);
  bool order_loaded_ GRADWIRE_GUARDED_BY(mutex_) = false;
  int mixed_pass_ GRADWIRE_GUARDED_BY(mutex_) = -1;  // the pass that options_.on_pass knows of
  bool warned_of_graph_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::internal
