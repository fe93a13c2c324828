// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Batch normalization whose statistics cover the batches of all ranks, as torch.nn.SyncBatchNorm.
//
//   struct NetImpl : torch::nn::Module {
//     torch::nn::Conv2d conv{...};
//     gradwire::SyncBatchNorm norm{64};        // on one rank, or before init_process_group(): a plain BatchNorm
//   };
// or, where layers are elements of a torch::nn::Sequential,
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

#include "gradwire/nn/layer_group.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// For each channel (dimension 1) of an input [N, C] or [N, C, ...]: y = (x - mean) / sqrt(variance + eps) * weight +
// bias. N and the other dimensions may differ between ranks, and N may be 0. In training mode, mean and variance are
// those of all ranks' elements of the channel. In eval mode, and in a group of one rank, this class does what
// BatchNorm1d, 2d and 3d do, where these take its types. Parameters, buffers and input may be of different types, as in
// DDP's mixed precision. Options, parameters, buffers and their names are those of BatchNorm.
//
// Contract in training mode in a group of several ranks:
//  - Agreement: all ranks call forward() of the same layers in the same order, and all ranks or none run backward.
//    Forward is one all_gather of 2 C + 2 doubles. If the input of any rank needs a gradient, backward is one
//    all_reduce of 2 C doubles. A rank that has joined in DDP's Join does not take part, so this layer does not work
//    with uneven numbers of batches.
//  - The collectives run on a duplicate of the group (layer_group.h), which the first such forward() makes. So these
//    collectives are never matched with other collectives of the group, such as those of DDP's buckets. Over the group
//    of an elastic job (elastic/elastic.h) the constructor makes the duplicate, so make the layers with that group, or
//    convert the module, before run(), on all ranks in the same order.
//  - Gradients are those of the sum of all ranks' losses. The gradients of weight and bias are this rank's part; DDP
//    averages them. A backward pass with create_graph (on all ranks) can be differentiated again.
//  - Each rank computes its statistics in the precision of the input, but at least in float32. They are combined in
//    float64 and in rank order, so running_mean and running_var have the same bits on all ranks. Inputs of half types
//    are normalized in float32.
//  - All ranks throw InvalidArgument when a channel has one element over all ranks (PyTorch continues with an infinite
//    variance; a channel without any element is allowed), and when a rank is in no-grad mode while another rank needs a
//    gradient.
// Threads: one thread at a time uses a layer, as with any module.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // A null `group` means the default group at the time of forward(); without a default group, this rank alone.
  explicit SyncBatchNormImpl(torch::nn::BatchNormOptions options, std::shared_ptr<ProcessGroup> group = nullptr);
  // Takes options, training mode and tensors from `plain`. The tensors are shared, not copied, so an optimizer that
  // holds the parameters of `plain` stays valid.
  template <size_t D, class Derived>
  SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& plain, std::shared_ptr<ProcessGroup> group)
      : SyncBatchNormImpl(plain.options, std::move(group), plain.weight, plain.bias, plain.running_mean,
                          plain.running_var, plain.num_batches_tracked) {
    train(plain.is_training());
  }

  // Returns the normalized input. Throws InvalidArgument for an input with fewer than two dimensions, with another
  // number of channels, or of a type that is not floating, and what the group's collectives throw.
  at::Tensor forward(const at::Tensor& input);

  // Replaces all tensors by new ones with the initial values, as options say.
  void reset() override;
  // Sets the running statistics to their initial values (mean 0, variance 1, no batches), in place, if they are
  // tracked.
  void reset_running_stats();
  // Calls reset_running_stats(), and sets weight to 1 and bias to 0, in place, if there are any.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // The group of the constructor or of set_process_group(); null means the default group. A new group holds from the
  // next forward() on. Set the same group on all ranks.
  const std::shared_ptr<ProcessGroup>& process_group() const noexcept { return group_.group(); }
  void set_process_group(std::shared_ptr<ProcessGroup> group);

  torch::nn::BatchNormOptions options;                        // as given to the constructor
  at::Tensor weight, bias;                                    // [C]; undefined unless options.affine()
  at::Tensor running_mean, running_var, num_batches_tracked;  // [C], [C], scalar; undefined unless tracked

 private:
  SyncBatchNormImpl(torch::nn::BatchNormOptions options, std::shared_ptr<ProcessGroup> group, at::Tensor weight,
                    at::Tensor bias, at::Tensor running_mean, at::Tensor running_var, at::Tensor num_batches_tracked);
  void register_all(bool weight_trains, bool bias_trains);
  at::Tensor plain(const at::Tensor& input, bool own_statistics, double momentum) const;

  LayerGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

// Replaces every BatchNorm1d, 2d and 3d in `module` and its submodules by a SyncBatchNorm with the same tensors, and
// sets `group` in every existing SyncBatchNorm. A null `group` means the default group at the time of forward().
// Returns `module`; where `module` itself is a BatchNorm, returns its replacement. Does not communicate. Throws
// InvalidArgument for a null `module`.
//
// Elements of torch::nn::Sequential, ModuleList and ModuleDict (and of classes derived from them) can be replaced.
// A BatchNorm that a class of the user holds as a typed member cannot be replaced, because C++ calls the forward() of
// the member's type: declare the member as SyncBatchNorm instead. When there is any such member, this function throws
// an InvalidArgument that names all of them, and changes nothing. Code that takes an element out of a ModuleList or
// ModuleDict must take the element out as SyncBatchNorm afterwards.
std::shared_ptr<torch::nn::Module> convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace gradwire
