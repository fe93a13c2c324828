// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Follows gradients from autograd into buckets, over the ranks and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/ddp/bucket_store_internal.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/lane_internal.h"
#include "gradwire/ddp/logging_data.h"
#include "gradwire/ddp/parameter_use_internal.h"

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
// Hooks run on lanes, outside that lock.
class Reducer final : public std::enable_shared_from_this<Reducer> {
 public:
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group, ReducerOptions options);
  // Takes the autograd hooks away. An unfinished reduction is aborted, so that the other ranks do not wait for it.
  ~Reducer();

  // Puts a hook on every parameter's gradient; again after the parameters have changed their types.
  void attach();
  void detach() noexcept;

  // Collective, once: makes the duplicates of the group, one for control and one a lane.
  void start();
  // Collective, once, after start(): gets the memory of the buckets; before_forward() does it otherwise.
  void prepare_memory();
  bool started() const noexcept { return control_ != nullptr; }
  // The group for what DDP itself has to say; after start().
  ProcessGroup& control() const noexcept { return *control_; }

  // Collective: one more duplicate of the group, or the group itself, which errors of this object abort.
  std::shared_ptr<ProcessGroup> another_group();

  // Whether there is nobody to communicate with.
  bool alone() const noexcept { return alone_; }

  // Collective in the groups that the hook names. Throws InvalidArgument when there is a hook or a backward pass was
  // synchronized already.
  void set_hook(std::shared_ptr<CommHook> hook);

  // Another hook, null for none, from the next before_forward() on, which is collective in the groups that it names.
  // Throws InvalidArgument within a backward pass, also when a hook calls it.
  void replace_hook(std::shared_ptr<CommHook> hook);

  // Throws the first failure again; throws when the reduction before did not finish, with the names of the parameters
  // that got no gradient. Then gets ready for another one (collective the first two times: memory, and the order of the
  // buckets).
  void before_forward();
  // Who takes part in the next iteration: what sums are divided by, and whether a rank does for the first time; the
  // same on all ranks.
  void set_participants(int divisor, bool new_rank);
  // The next backward pass is synchronized.
  void expect_backward();
  // Instead of a backward pass: takes part in the others' with zeros, and gets the averages. Throws what a backward
  // pass would.
  void shadow_backward();
  // Calls expect_backward() when a backward pass comes through one of `outputs`, and looks at the start of the pass for
  // parameters that it will bring no gradient.
  void expect_backward_through(const std::vector<at::Tensor>& outputs);

  // Ends this rank's part with a reason that the other ranks get; the first one stays.
  void fail(std::exception_ptr error, const std::string& where);

  // The names of the parameters in the order of their buckets, as rank 0 found it; empty before that.
  std::vector<std::string> bucket_order() const;
  // Begins with this order instead of finding one. Takes effect at the next before_forward(), where rank 0's counts.
  // Throws InvalidArgument when it is not an order of the parameters, or a backward pass was synchronized already.
  void set_bucket_order(const std::vector<std::string>& names);

  // What happened so far, for tests and logs.
  std::uint32_t iterations() const;
  std::vector<std::vector<std::size_t>> plan() const;
  // network_payload_bytes() of all groups that carry gradients or DDP's own calls, together.
  std::uint64_t payload_bytes() const;
  // Fill in what it knows of the parameters, and of what happened.
  void describe_parameters(DdpLoggingData& data) const;
  void report(DdpLoggingData& data) const;

 private:
  using Clock = std::chrono::steady_clock;
  // When what happened in an iteration.
  struct Marks {
    Clock::time_point forward, backward, first_launch, last_gradient;
  };
  // A bucket from its launch to the end of the iteration.
  struct Flight {
    at::Tensor result;           // what becomes the gradients; undefined until it is known
    Future future;               // without lanes: still under way
    std::shared_ptr<Work> work;  // without lanes: kept until its end; a user's group may hold it nowhere
    at::Tensor sparse;           // this rank's gradient, of a sparse bucket; undefined: no entries
    Clock::time_point end;       // when the result was known
    StreamFence filled;          // the streams that wrote this rank's gradients; of a bucket on a device, as the next
    StreamFence reduced;         // the streams that made the result
  };

  void begin_pass();
  void end_of_learning();
  void on_gradient(std::size_t parameter);
  void take_gradient(std::size_t parameter);
  void take_absent(std::size_t parameter);
  void store_gradient(std::size_t parameter);
  void store_zeros(std::size_t parameter);
  void store_sparse(std::size_t parameter);
  void require_storable(std::size_t parameter, const at::Tensor& grad, const at::Tensor& slot) const;
  void launch_ready();
  bool launch_next();
  void launch(std::size_t bucket);
  at::Device device_of(std::size_t bucket) const;
  void follow_gradients(std::size_t bucket);
  void mark_reduced(std::size_t bucket);
  void follow_lanes();
  void run_on_lane(std::size_t bucket, Lane& lane, const CallTag& tag);
  void reduce_on_lane(std::size_t bucket, Lane& lane, const CallTag& tag);
  void run_here(std::size_t bucket);
  Future run_hook(std::size_t bucket, ProcessGroup& group, std::uint32_t iteration);
  at::Tensor reduce_plain(std::size_t bucket, ProcessGroup& group);
  at::Tensor reduce_sparse(std::size_t bucket, ProcessGroup& group, const CallTag& tag);
  at::Tensor plain_result(std::size_t bucket);
  bool divides_after() const noexcept { return options_.bucket_dtype.has_value(); }
  ReduceOp plain_op() const;
  at::Tensor checked(std::size_t bucket, at::Tensor result) const;
  void keep_result(std::size_t bucket, at::Tensor result);
  void await_here();
  void finish();
  void write_back();
  void write_back(std::size_t bucket);
  void count_times();
  void begin_iteration();
  void rebuild();
  bool rebuilds() const noexcept { return options_.graph != GraphKind::searched; }
  void adopt_replacement();
  void duplicate_hook_groups();
  void compare_hooks(std::size_t bucket, ProcessGroup& group, std::uint32_t iteration) const;
  CallTag tag_of(std::size_t bucket) const noexcept;
  std::shared_ptr<ProcessGroup> duplicate_of(const std::shared_ptr<ProcessGroup>& group);
  void require_own_accumulators() const;
  void require_finished();
  bool under_way() const;
  void watch_pass();
  void backward_failed(const std::exception_ptr& error);
  [[noreturn]] void throw_failure();
  void fail_and_throw(const std::string& where);
  std::vector<std::string> missing_parameters() const;
  int usable_lanes() const noexcept;
  std::vector<std::size_t> bucket_sizes() const;
  bool idle() const noexcept { return alone_ && hook_ == nullptr; }

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const bool ours_;   // one of gradwire's own backends
  const bool alone_;  // one rank over one of them: nothing to communicate
  OwnerProcess owner_;

  mutable Mutex mutex_;
  BucketStore store_;
  ParameterUse use_;
  std::shared_ptr<CommHook> hook_;
  std::optional<std::shared_ptr<CommHook>> replacement_;  // waits for the next before_forward()
  std::uint8_t hooks_before_ = 0;                         // modulo 256; the ranks compare it
  std::optional<std::uint32_t> hook_since_;  // the first iteration of the hook, in which the ranks compare it
  std::atomic<bool> reducing_{false};        // the synchronized backward pass has begun
  std::shared_ptr<ProcessGroup> control_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  // Without lanes, over a group that has duplicates: where the backward thread leads a hook's calls. Empty without
  // duplicates.
  std::vector<LaneScope::Route> routes_here_;
  // All groups that carry gradients or DDP's own calls: duplicates, or what has none. An error aborts them.
  std::vector<std::shared_ptr<ProcessGroup>> aborted_with_us_;

  // Of the iteration.
  bool expecting_ = false;
  bool pass_begun_ = false;
  bool joined_ = false;  // this iteration is another rank's
  int divisor_ = 1;
  bool rebuilt_ = false;
  std::uint32_t iteration_ = 0;
  int watched_pass_ = -1;
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> pending_;       // gradients that each bucket still waits for
  std::vector<bool> ready_;                // by parameter
  std::vector<std::int64_t> ready_order_;  // of the first iteration, or loaded; after the rebuild: of the buckets
  bool order_loaded_ = false;
  std::vector<Flight> flights_;  // by bucket
  PendingCount running_;         // buckets on lanes
  int mixed_pass_ = -1;          // the pass that options_.on_pass knows of

  // For report().
  Marks marks_;
  DdpTimes last_times_, total_times_;
  std::uint32_t timed_ = 0;  // iterations in total_times_
  std::vector<std::size_t> gradient_order_, last_gradient_order_;
  std::vector<std::size_t> first_bucket_sizes_;

  mutable Mutex failure_mutex_;
  std::exception_ptr failure_ GRADWIRE_GUARDED_BY(failure_mutex_);
  std::atomic<bool> failed_{false};

  std::vector<c10::intrusive_ptr<torch::autograd::Node>> accumulators_;  // autograd itself holds them weakly
  std::vector<std::uintptr_t> hook_keys_;
};

}  // namespace gradwire::internal
