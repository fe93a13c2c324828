// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An optimizer whose state is divided among the N ranks. Each rank steps 1/N of the parameters, keeps the optimizer
// state of these parameters only (Adam: twice their size), and sends the new values to the other ranks.
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
// On all ranks, parameters have the same bits as with the plain optimizer over all parameters. The plain optimizer is
// the optimizer that the factory makes.
//
// Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), the
// first stage. Follows PyTorch's class of this name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/ddp/join.h"
#include "gradwire/ddp/sharded_state.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

namespace internal {
struct ZeroParts;
class ZeroOverlap;
}  // namespace internal

// The options must be the same on all ranks.
struct ZeroOptions {
  std::shared_ptr<ProcessGroup> process_group = nullptr;  // null: the default group
  // True: parameters lie in flat buffers, one for each rank's part, dtype and device, and the buffers are sent without
  // a copy. False: small parameters are copied into messages of at most 25 MiB. With true, construction moves the
  // parameters with their values into the buffers; a tensor that shared memory with a parameter before (a .data that
  // was kept) does not follow. The buffers replace the old memory, so no extra memory is held.
  bool parameters_as_bucket_view = false;
  // True: the hook of zero_hook.h runs the steps in DDP's backward pass, and step() does nothing. Allows one parameter
  // group only.
  bool overlap_with_ddp = false;
};

// Each parameter has one owner, the rank that steps it. The parameters of a group are assigned from the largest to the
// smallest, each to the rank that has the fewest elements so far. So a rank's part is at most 1/N of all elements plus
// one parameter.
//
// Each step sends all parameters, also those that need no gradient, so leave these out. A learning rate scheduler works
// on this object: each step reads the options from param_groups(). The state is in local_optimizer().state(); state()
// of this object is empty. Groups may also be added through the base class; the next step adopts them.
//
// When the closure or the local optimizer throws on one rank, step() throws this exception on that rank. The other
// ranks throw a PeerError that quotes the exception if the group can be duplicated; otherwise they wait until the
// group's timeout. Parameters are indeterminate then.
//
// In a Join (ddp/join.h), list this object after the DistributedDataParallel whose gradients it uses. A rank that has
// joined keeps stepping its part with the averages that DDP gives it. With overlap_with_ddp, DDP's hook does this.
//
// In an elastic job (Elastic::add(), elastic/elastic.h) the parameters are dealt anew when the ranks change. A rank
// then steps the parameters of the rank before it too, so that it holds a copy of that rank's state: the averages are
// on all ranks, so the copy costs no bytes on the wire, but the memory and the time of the step of another 1/N. Before
// a step changes anything, each rank keeps the values of all parameters, and the state of its own and the copied
// parameters.
//
// Not movable. One thread at a time may use this object. Destroy this object before its group.
class ZeroRedundancyOptimizer final : public torch::optim::Optimizer, public Joinable, public ShardedState {
 public:
  // Collective in the group: all ranks pass parameters of the same sizes, strides and dtypes in the same order, in the
  // same number of groups, and the same options. The ranks compare these; when any rank differs, all ranks throw
  // MismatchError.
  //
  // Throws InvalidArgument, before any communication, for no parameters; a parameter that is undefined, sparse, no
  // leaf, listed twice, or on a device that the group does not serve; a factory that is null, returns null, makes
  // LBFGS, or changes the groups; several groups with overlap_with_ddp; and where there is no group.
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, OptimizerFactory factory, ZeroOptions options = {});
  ZeroRedundancyOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, OptimizerFactory factory,
                          ZeroOptions options = {});
  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer(ZeroRedundancyOptimizer&&) = delete;
  ZeroRedundancyOptimizer& operator=(ZeroRedundancyOptimizer&&) = delete;

  // Collective: the local optimizer steps this rank's parameters, and then every owner sends its parameters to all
  // ranks. `closure` runs once on every rank, also on a rank without parameters. Returns the closure's result, or an
  // undefined tensor without a closure. With overlap_with_ddp: does nothing, and throws InvalidArgument for a closure.
  // Throws InvalidArgument when parameters of an existing group were added or removed, and, with the names, when a
  // DistributedDataParallel still waits for gradients of these parameters, which this rank's backward pass did not
  // bring: the other ranks wait for them. See above for other errors.
  at::Tensor step(LossClosure closure = nullptr) override;

  // Collective, with the constructor's rules and errors. Parameters of the other groups keep their owners. After an
  // error the group is not added. Throws InvalidArgument with overlap_with_ddp.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Collective: gathers the state of all ranks on rank `to`, in CPU memory. save() then works on rank `to` until the
  // next step, load() or new parameter group. Throws InvalidArgument for a rank out of range, and with overlap_with_ddp
  // before the first step; MismatchError on all ranks when ranks pass different `to`; the group is usable afterwards.
  void consolidate_state(int to = 0);

  // Writes the archive that the plain optimizer over all parameters would write; the plain optimizer can load it. Does
  // not communicate. Throws InvalidArgument unless this rank has the state of all ranks (consolidate_state()).
  void save(torch::serialize::OutputArchive& archive) const override;
  // Reads an archive that this class wrote with any number of ranks, or that the plain optimizer wrote. Every rank
  // loads the same archive, keeps the state of its part, and takes over the options. Does not communicate. Throws
  // c10::Error for the archive of another optimizer or of another number of parameters, and InvalidArgument where their
  // sizes are others; nothing has changed then.
  void load(torch::serialize::InputArchive& archive) override;

  // Joinable's functions, which Join calls (ddp/join.h).
  std::unique_ptr<JoinHook> join_hook(const JoinOptions& options) override;
  c10::Device join_device() const override;
  std::shared_ptr<ProcessGroup> join_process_group() const override { return process_group(); }

  // ShardedState's functions, which Elastic calls (ddp/sharded_state.h). An entry is what the optimizer remembers of
  // one parameter. read_entries() reads an archive that save() wrote: torch::save(optimizer, path).
  std::shared_ptr<ProcessGroup> sharding_group() const override { return process_group(); }
  std::string sharding_identity() const override;
  std::vector<int> owners_among(int size) const override;
  void begin_step() override;
  std::vector<std::pair<at::Tensor, std::uint32_t>> undo_step() override;
  std::vector<Holds> held(Version version) const override;
  std::string save_entries(const std::vector<std::size_t>& entries, Version version) const override;
  std::string read_entries(const std::vector<std::size_t>& entries, const std::string& path) const override;
  std::string new_entries(const std::vector<std::size_t>& entries) const override;
  std::string save_common() const override;
  void load_common(const std::string& bytes) override;
  void deal(const Deal& deal) override;

  // Returns the rank that steps `parameter`. Throws InvalidArgument for a tensor that is not among the parameters, with
  // overlap_with_ddp before the first step, and with the hook of fused_zero_hook.h, which shares each parameter out.
  int owner_of(const at::Tensor& parameter) const;
  // Returns the optimizer over this rank's parameters, which this object owns. The local optimizer has the same number
  // of groups as this object. Throws InvalidArgument with overlap_with_ddp.
  torch::optim::Optimizer& local_optimizer();
  const std::shared_ptr<ProcessGroup>& process_group() const noexcept;
  const ZeroOptions& options() const noexcept;

 private:
  friend class internal::ZeroOverlap;
  class Shadow;
  explicit ZeroRedundancyOptimizer(std::unique_ptr<internal::ZeroParts> parts);
  void adopt_added_groups();
  at::Tensor step_and_share(LossClosure closure, bool joined);
  std::unique_ptr<torch::optim::Optimizer> make_plain() const;
  std::unique_ptr<torch::optim::Optimizer> make_over(const std::vector<std::size_t>& entries) const;

  const std::unique_ptr<internal::ZeroParts> parts_;
};

}  // namespace gradwire
