// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One fragment of the parameters in DiLoCo: parameters of one dtype and device that are exchanged together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/ddp/lane_internal.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/optim/diloco_meeting_internal.h"
#include "gradwire/optim/optimizer_factory.h"

namespace gradwire::internal {

class DilocoFragment {
 public:
  // Whose state an archive holds: all that one rank needs to go on, or what other ranks need too.
  enum class Scope { rank, shared };

  // `layout` names the parameters; the index is unique among the fragments. Collective in `group`, which carries the
  // exchanges. The outer parameters begin with the parameters' values. `hook` is this fragment's alone.
  DilocoFragment(std::shared_ptr<const BucketLayout> layout, std::shared_ptr<ProcessGroup> group,
                 const OptimizerFactory& outer, std::shared_ptr<CommHook> hook);

  // Begins the exchange of the differences, on `lane`, which is destroyed before this object, or at once without one.
  // `count`: the number of steps that have ended. All ranks begin the exchanges of all fragments in the same order.
  void begin(Lane* lane, std::int64_t count);
  // Waits for the exchange, steps the outer parameters and mixes them into the parameters. Throws what the exchange
  // threw.
  void finish(double mixing);
  // Waits for the exchange, if there is one. Throws what the exchange threw.
  void await();

  bool is_under_way() const noexcept { return standing_.phase != DilocoPhase::idle; }
  // The number of steps at which the last exchange began.
  std::int64_t begun_at() const noexcept { return standing_.begun_at; }
  // The steps have other numbers from now on, which differ by `difference`.
  void shift(std::int64_t difference) noexcept { standing_.begun_at += difference; }
  const std::vector<at::Tensor>& parameters() const noexcept { return layout_->parameters; }
  const std::vector<at::Tensor>& outer() const noexcept { return outer_; }
  const torch::optim::Optimizer& outer_optimizer() const noexcept { return *optimizer_; }

  // From now on an exchange can be done again, and counts when all ranks have confirmed that they have the average.
  void keep_differences() noexcept { keeps_ = true; }
  // Waits until the exchange has ended, well or not.
  void leave_group();
  // How far the fragment is. Outside of a group.
  FragmentStanding standing() const;
  // The exchange has not taken place: the differences and the hook's memory are as they were when it began.
  void take_back();
  // The group has other ranks: what the hook knows of ranks that may be gone goes. `share`: DilocoPlan, of the exchange
  // that began at `begun_at`.
  void change_ranks(double share, std::int64_t begun_at);
  // Begins the exchange that was taken back once more. Nothing when there is none.
  void begin_again(Lane* lane);

  // The outer parameters, the outer optimizer, the hook's state, and the averages of an exchange under way, for which
  // save() waits. An exchange that has no averages is saved with Scope::shared only.
  void save(torch::serialize::OutputArchive& archive, Scope scope);
  // Takes over what save() wrote. With Scope::shared the parameters become the outer ones, and this rank has no
  // difference in an exchange under way.
  void load(torch::serialize::InputArchive& archive, Scope scope);

 private:
  void start(Lane* lane);
  void run_on_lane(Lane& lane, std::uint32_t round, double share) noexcept;
  void exchange(std::uint32_t round, double share) noexcept;
  void fail(std::exception_ptr error);
  // After pending_.wait(): what this thread's current stream does from now on comes after what the lane's stream did.
  void follow_lane();
  void load_outer(torch::serialize::InputArchive& archive, Scope scope);

  const std::shared_ptr<const BucketLayout> layout_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<CommHook> hook_;
  at::Tensor difference_;  // flat
  at::Tensor memory_;      // of outer_, flat
  std::vector<at::Tensor> outer_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  // over outer_
  FragmentStanding standing_;                           // without the hash
  double share_ = 1;                                    // for the exchange that begins at shared_at_
  std::int64_t shared_at_ = -1;
  bool keeps_ = false;
  at::Tensor kept_difference_;  // of an exchange that began, as difference_ was then
  KeptHookState kept_hook_;
  StreamFence written_;  // what the exchange reads is written
  // Written by the exchange, read after pending_.wait().
  StreamFence ended_;
  at::Tensor average_;
  std::exception_ptr error_;
  PendingCount pending_;
};

}  // namespace gradwire::internal
