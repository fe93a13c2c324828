// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints: one file with the module, the state of the optimizer, the state of the communication hook on every rank,
// the order of the buckets, and values of the program's own. A run that continues from the file on as many ranks
// computes the same bits as a run without an interruption.
//
//   gradwire::DistributedDataParallel ddp(net);
//   ddp.register_comm_hook(gradwire::make_hook("power_sgd:rank=4"));
//   torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
//   std::int64_t step = 0;
//   if (resume) step = gradwire::load_checkpoint("run.ckpt", ddp, optimizer).at("step").toInt();
//   ...
//   gradwire::save_checkpoint("run.ckpt", ddp, optimizer, {{"step", step}});
//
// Rank 0 writes and reads the file, so the hosts need no file system in common. docs/checkpoints.md says more.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The program's own values by name: tensors, numbers, booleans, strings, and lists of these.
using CheckpointValues = std::map<std::string, c10::IValue>;

// What restore() does when the checkpoint was saved under another hook, or without one.
enum class OtherHook {
  refuse,     // throws InvalidArgument
  start_new,  // the hook of this run keeps the state that it has; the saved state is not used
};

// All functions and methods of this file that take part in communication are collective in the group of the DDP object
// or in `group`: every rank calls them in the same order with the same arguments. They block. Not thread-safe.

// Replaces `file` as a whole or not at all: when the job ends during the call, the old file stays. Rank 0 writes its
// module, so call it where the modules of all ranks are equal: between steps, and with averaging optimizers
// (model_averaging.h) right after an average. The state of a ZeroRedundancyOptimizer is gathered first.
//
// Throws the same kind of error on all ranks, with the reason of the first rank that has one: ResourceError when the
// file cannot be written (with the path and the system's reason), InvalidArgument while the parameters have a lower
// precision, what the hook's state_dict() throws on a rank (Error where that is no error of gradwire). Throws
// InvalidArgument for ZeroOptions::overlap_with_ddp before the first step; and what the collectives throw.
void save_checkpoint(const std::string& file, DdpCore& ddp, torch::optim::Optimizer& optimizer,
                     const CheckpointValues& values = {});
template <class Module>
void save_checkpoint(const std::string& file, DistributedDataParallel<Module>& ddp, torch::optim::Optimizer& optimizer,
                     const CheckpointValues& values = {}) {
  save_checkpoint(file, ddp.core(), optimizer, values);
}

// A checkpoint that has been read, and not yet restored: for programs that look at the values first.
class Checkpoint {
 public:
  // Collective in `group`. Throws InvalidArgument on all ranks when the file does not exist, cannot be read, or is no
  // such checkpoint or a damaged one.
  Checkpoint(const std::string& file, ProcessGroup& group);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const CheckpointValues& values() const noexcept;
  // The number of ranks that saved.
  int ranks() const noexcept;
  // CommHook::identity() of the hook that DDP had; empty without a hook.
  const std::string& hook() const noexcept;
  // Whether the hook kept state of its own on each rank.
  bool has_local_state() const noexcept;

  // Collective in the group of `ddp`. Loads the module, the optimizer and the hook that `ddp` has now. Register the
  // hook first, and restore before the first backward pass: after it the order of the buckets stays as it is, and the
  // hook's results may differ in bits from those of an uninterrupted run. The module stays on its device, and the
  // optimizer's state comes to that device.
  //
  // On another number of ranks, every rank takes the mean of the hook's local states (average_local() in
  // ddp/hook_state.h); the module and the optimizer's state do not depend on the number. Where a hook runs between
  // hosts, the mean is over the first ranks of the hosts, which alone have a memory; so it is on as many ranks that are
  // otherwise distributed over hosts.
  //
  // DDP may train other parameters than those of the run that saved (frozen ones, parameters_and_buffers_to_ignore,
  // delay_all_reduce_named_params). The order of the buckets is then not used, and the hook's state of parameters that
  // are not trained is left out; a warning in the log says so. Pass the optimizer all parameters in both runs.
  //
  // What module and optimizer have learned since, in objects that have trained, is forgotten: a parameter of which the
  // checkpoint has no state has none afterwards.
  //
  // Throws InvalidArgument, and has changed nothing, when the parameters and buffers of the module have other names,
  // sizes or dtypes than the saved ones; when the module is on several devices; when the optimizer is of another class;
  // and when the hook is another one and `other` is OtherHook::refuse. Throws c10::Error when the optimizer has other
  // groups of parameters. When loading fails on some ranks only, the others throw a PeerError that names them.
  void restore(DdpCore& ddp, torch::optim::Optimizer& optimizer, OtherHook other = OtherHook::refuse);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Reads a checkpoint and restores it: Checkpoint::Checkpoint() and Checkpoint::restore(). Returns the program's values.
CheckpointValues load_checkpoint(const std::string& file, DdpCore& ddp, torch::optim::Optimizer& optimizer,
                                 OtherHook other = OtherHook::refuse);
template <class Module>
CheckpointValues load_checkpoint(const std::string& file, DistributedDataParallel<Module>& ddp,
                                 torch::optim::Optimizer& optimizer, OtherHook other = OtherHook::refuse) {
  return load_checkpoint(file, ddp.core(), optimizer, other);
}

}  // namespace gradwire
