// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Batch normalization whose statistics are those of all ranks' batches together, as torch.nn.SyncBatchNorm.
//
//   struct NetImpl : torch::nn::Module {
//     torch::nn::Conv2d conv{...};
//     gradwire::SyncBatchNorm norm{64};        // on one rank, or before init_process_group(): a plain BatchNorm
//   };
// or, where layers stand in a torch::nn::Sequential,
//   gradwire::convert_sync_batchnorm(net.ptr());
//   gradwire::DistributedDataParallel ddp(net);
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>
#include <utility>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// y = (x - mean) / sqrt(variance + eps) * weight + bias for each channel (dimension 1) of an input [N, C] or
// [N, C, ...], N and the rest being different on each rank if need be; a rank may have an empty batch (N = 0). In
// training mode mean and variance are those of all ranks' elements of the channel; in eval mode, and in a group of one
// rank, this is BatchNorm1d, 2d and 3d in one. Options, parameters, buffers and their names are theirs.
//
// Contract in training mode in a group of several ranks:
//  - Collective: all ranks call forward() of the same layers in the same order, and all or none run backward. Forward
//  is
//    one all_gather of 2 C + 2 doubles, backward one all_reduce of 2 C doubles where some rank's input needs a
//    gradient. The ranks that stay behind in DDP's Join take no part, so uneven numbers of batches do not go together
//    with this layer.
//  - The collectives run in a duplicate of the group (ProcessGroup::dup()), made at the first such forward() and shared
//    by all layers over the group: what else runs on the group, DDP's buckets in the middle of a backward pass
//    included, cannot meet them. Over a group without duplicates they run in the group itself.
//  - Gradients are those of the sum of all ranks' losses. Those of weight and bias are this rank's part: DDP, or
//    whoever averages gradients, brings them together. A backward pass with create_graph (on all ranks alike) can be
//    differentiated again.
//  - Statistics are computed in float64 and combined in rank order: running_mean and running_var get the same bits on
//    all ranks. Half types compute in float.
//  - One element a channel over all ranks is refused on all ranks with InvalidArgument (PyTorch's goes on with an
//    infinite variance); none at all is fine. So is a rank in no-grad mode while another one needs a gradient.
// Not thread-safe, as no module is.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // `group` null: the default group, if there is one when forward() runs.
  explicit SyncBatchNormImpl(torch::nn::BatchNormOptions options, std::shared_ptr<ProcessGroup> group = nullptr);
  // Takes over the options, the mode and the very tensors of `plain` (parameters stay those an optimizer knows).
  template <size_t D, class Derived>
  SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& plain, std::shared_ptr<ProcessGroup> group)
      : SyncBatchNormImpl(plain.options, std::move(group), plain.weight, plain.bias, plain.running_mean,
                          plain.running_var, plain.num_batches_tracked) {
    train(plain.is_training());
  }

  // Throws InvalidArgument for an input of less than two dimensions, of another number of channels, or not of a
  // floating type.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  const std::shared_ptr<ProcessGroup>& process_group() const noexcept { return group_; }
  void set_process_group(std::shared_ptr<ProcessGroup> group) { group_ = std::move(group); }

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // [C]; undefined unless options.affine()
  at::Tensor running_mean, running_var, num_batches_tracked;  // [C], [C], scalar; undefined unless tracked

 private:
  SyncBatchNormImpl(torch::nn::BatchNormOptions options, std::shared_ptr<ProcessGroup> group, at::Tensor weight,
                    at::Tensor bias, at::Tensor running_mean, at::Tensor running_var, at::Tensor num_batches_tracked);
  void register_all(bool weight_trains, bool bias_trains);
  void require_fitting(const at::Tensor& input) const;
  double next_momentum();
  at::Tensor plain(const at::Tensor& input, bool own_statistics, double momentum) const;
  std::shared_ptr<ProcessGroup> duplicate();

  std::shared_ptr<ProcessGroup> group_;
  // The group that `duplicate_` was made of.
  std::weak_ptr<ProcessGroup> duplicated_;
  std::shared_ptr<ProcessGroup> duplicate_;
};
TORCH_MODULE(SyncBatchNorm);

// Puts a SyncBatchNorm with the same tensors in the place of every BatchNorm1d, 2d and 3d at or below `module`, and
// gives the SyncBatchNorms that are there already the group. Returns `module`, or, where it is a BatchNorm itself, its
// replacement. Not collective.
//
// What can be replaced: elements of torch::nn::Sequential, ModuleList and ModuleDict (and of classes derived from
// them), wherever these stand in the tree. What cannot: a BatchNorm that a class of the user's has as a typed member or
// has registered itself, since C++ calls BatchNorm's forward() there, whatever is registered under the name. One of
// those, and nothing is changed: throws InvalidArgument with the names of them all. Declare such a member as
// SyncBatchNorm. Elements of a ModuleList or ModuleDict are then to be taken out as SyncBatchNorm, not as BatchNorm.
std::shared_ptr<torch::nn::Module> convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace gradwire
