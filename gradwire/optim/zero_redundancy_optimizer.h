// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An optimizer whose memory is shared out among the ranks: each rank steps 1/N of the parameters, remembers what its
// optimizer needs for those (Adam: twice their size) and sends the results to the others.
//
//   gradwire::DistributedDataParallel ddp(net);
//   gradwire::ZeroRedundancyOptimizer optimizer(
//       ddp.parameters(), gradwire::optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)));
//   for (...) {
//     optimizer.zero_grad();
//     loss_of(ddp(x)).backward();
//     optimizer.step();
//   }
//
// The same bits as the optimizer itself over all parameters, on all ranks.
//
// Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), the
// first stage. PyTorch's class of this name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "gradwire/ddp/join.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

namespace internal {
struct ZeroParts;
class ZeroHook;
}  // namespace internal

// Must be the same on all ranks.
struct ZeroOptions {
  std::shared_ptr<ProcessGroup> process_group = nullptr;  // null: the default group
  // Parameters lie in flat buffers, one for each rank's part, dtype and device, which travel as they are; otherwise
  // small parameters are copied into messages. Construction moves them there, with their values: what shared memory
  // with a parameter before (a .data that was kept) does not follow. Holds no extra memory.
  bool parameters_as_bucket_view = false;
  // The steps run inside DDP's backward pass, by the hook of zero_hook.h, and step() does nothing. One parameter group.
  bool overlap_with_ddp = false;
};

// Each parameter belongs to one rank: within a group the largest first, each to the rank with the fewest elements so
// far. So a rank's share is at most 1/N of all elements plus one parameter.
//
// All parameters travel in each step, also those that need no gradient: do not pass those. A learning rate scheduler
// takes this object as any optimizer: options are read from param_groups() at each step. What the local optimizer
// remembers is in local_optimizer().state(); state() of this object is empty. Groups may be added through the base
// class too; the next step takes them up.
//
// When a step throws on one rank, out of the closure or the local optimizer, the others throw a PeerError that quotes
// it, where the group can be duplicated; else they wait for its timeout. Parameters are indeterminate then.
//
// In a Join (ddp/join.h), after the DistributedDataParallel whose gradients it uses, a rank that has joined goes on
// stepping its part: DDP gives it the averages. With overlap_with_ddp, DDP's hook does that already.
//
// Not movable; used from one thread at a time. Destroy it before its group.
class ZeroRedundancyOptimizer final : public torch::optim::Optimizer, public Joinable {
 public:
  // Collective in the group: the ranks compare what they were given. Throws InvalidArgument (no parameters, one twice,
  // sparse, on a device that the group does not serve; a factory that is null or makes no usable optimizer; several
  // groups with overlap_with_ddp) before any call, MismatchError on all ranks.
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, OptimizerFactory factory, ZeroOptions options = {});
  ZeroRedundancyOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, OptimizerFactory factory,
                          ZeroOptions options = {});
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer(ZeroRedundancyOptimizer&&) = delete;
  ZeroRedundancyOptimizer& operator=(ZeroRedundancyOptimizer&&) = delete;

  // Collective: the local optimizer steps this rank's parameters, then all ranks get them. `closure` runs on every
  // rank, once, also where no parameters are; returns what it returned. With overlap_with_ddp: does nothing, and throws
  // InvalidArgument for a closure.
  at::Tensor step(LossClosure closure = nullptr) override;

  // Collective, like the constructor, with its errors; parameters of other groups stay with their ranks. Throws
  // InvalidArgument with overlap_with_ddp.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Collective: gathers what all ranks remember on rank `to`, in the CPU's memory. save() works there until the next
  // step. Throws InvalidArgument (no such rank; with overlap_with_ddp, before the first update), MismatchError on all
  // ranks when they name different ones.
  void consolidate_state(int to = 0);

  // Writes the archive that the plain optimizer over the same parameters would write, and the plain optimizer loads.
  // Throws InvalidArgument unless consolidate_state() brought the state here since the last step.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Reads such an archive: of this class with any number of ranks, or of the plain optimizer. Every rank loads the same
  // one, keeps its part, and takes over the options. Nothing changes when it throws (c10::Error: the archive of another
  // optimizer or other parameters).
  void load(torch::serialize::InputArchive& archive) override;

  // For Join.
  std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) override;
  c10::Device join_device() const override;
  std::shared_ptr<ProcessGroup> join_process_group() const override { return process_group(); }

  // The rank that steps `parameter`. Throws InvalidArgument for one that is not here, and with overlap_with_ddp before
  // the first update.
  int owner_of(const at::Tensor& parameter) const;
  // This rank's optimizer, over its parameters in as many groups. Throws InvalidArgument with overlap_with_ddp.
  torch::optim::Optimizer& local_optimizer();
  const std::shared_ptr<ProcessGroup>& process_group() const noexcept;
  const ZeroOptions& options() const noexcept;

 private:
  friend class internal::ZeroHook;
  class Shadow;
  explicit ZeroRedundancyOptimizer(std::unique_ptr<internal::ZeroParts> parts);
  void adopt_added_groups();
  at::Tensor step_and_share(LossClosure closure, bool joined);
  std::unique_ptr<torch::optim::Optimizer> make_plain() const;

  const std::unique_ptr<internal::ZeroParts> parts_;
};

}  // namespace gradwire
