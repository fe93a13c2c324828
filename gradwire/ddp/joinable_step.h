// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What follows each backward pass, in a Join.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/ddp/join.h"

namespace gradwire {

// Makes a rank that has joined do what the other ranks do after each backward pass: clip the gradients, step an
// optimizer, step a schedule of learning rates. Without it, a rank that has joined does not step. At the end it gets
// the parameters of the last joiner, but momentum, averages of squares and counts of steps stay behind, so the ranks'
// later steps differ.
//
//   const auto step = [&] { optimizer.step(); };
//   JoinableStep joinable(ddp.core(), step);
//   Join join({ddp, joinable});
//   for (auto& [x, target] : loader) {
//     optimizer.zero_grad();
//     loss_of(ddp(x), target).backward();
//     step();
//   }
//   join.finish();
//
// In the list it stands behind the DistributedDataParallel, which gives a rank that has joined the averages in .grad.
// The function reads gradients and changes what is the same on all ranks; it does not communicate. One call follows
// each forward pass within the Join. A ZeroRedundancyOptimizer needs none: it is a Joinable itself. Not thread-safe.
class JoinableStep final : public Joinable {
 public:
  // `ddp` outlives this object. Throws InvalidArgument for an empty function.
  JoinableStep(Joinable& ddp, std::function<void()> step);

  // Throws what the function throws, in the Join's finish().
  std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) override;
  c10::Device join_device() const override { return ddp_.join_device(); }
  std::shared_ptr<ProcessGroup> join_process_group() const override { return ddp_.join_process_group(); }

 private:
  Joinable& ddp_;
  const std::function<void()> step_;
};

}  // namespace gradwire
