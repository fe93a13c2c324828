// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd differentiates: each takes tensors and returns new ones, and its gradients are those of the
// sum of all ranks' losses.
//
// Contract of them all:
//  - Collective: every rank of `group` calls the same functions in the same order, and if anybody needs a gradient
//  every
//    rank must run backward through what it got, since the gradients travel through collectives too. Ranks agree at
//    the call, in an all-reduce of two integers, whether anybody needs one: a rank whose own inputs need none takes
//    part all the same (its outputs then require a gradient). A rank that calls in no-grad mode while another one needs
//    a gradient is refused on all ranks with InvalidArgument.
//  - Inputs: dense, of any strides, real or complex; they are not changed. Outputs are new and contiguous.
//  - Gradients: for SUM, AVG and premultiplied sums by linearity; MIN and MAX give the gradient to the ranks that hold
//  the
//    extreme value (ties share it evenly, as torch::amax does; NaN counts as extreme); PRODUCT multiplies with the
//    other ranks' values, so zeros are right (it gathers the inputs: N times their memory in backward); complex
//    gradients are conjugate, as torch's. Other ops have no gradient and are refused when one is needed.
//  - The backward passes are made of the same functions, so they can be differentiated again (`create_graph` alike on
//    all ranks); send and recv only once.
//  - Errors are those of the group's calls, thrown from the function, or from backward().
// Thread-safe as the group is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/reduce_op.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::functional {

using Group = std::shared_ptr<ProcessGroup>;

// The tensor of rank `root`, on every rank; the others' give shape and dtype. Gradient: the sum of all ranks' gradients
// at the root, zeros elsewhere.
at::Tensor broadcast(const at::Tensor& tensor, int root, const Group& group);

// The reduction of all ranks' tensors, on every rank, bit for bit the same.
at::Tensor all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum());

// The reduction on rank `root`, zeros elsewhere. Gradient: from the root's output alone.
at::Tensor reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op = ReduceOp::sum());

// The reduction of all ranks' inputs[rank()]. `inputs`: size() tensors of one shape.
at::Tensor reduce_scatter(const Tensors& inputs, const Group& group, ReduceOp op = ReduceOp::sum());

// All ranks' tensors, in rank order. Gradient: the sum over the ranks of their gradients of this rank's tensor.
Tensors all_gather(const at::Tensor& tensor, const Group& group);

// All ranks' tensors on rank `root`; zeros of the same shapes elsewhere. Gradient: from the root's output alone.
Tensors gather(const at::Tensor& tensor, int root, const Group& group);

// inputs[rank()] of rank `root`. `inputs`: size() tensors of one shape on every rank; those off the root give shape and
// dtype, and get gradients of zeros.
at::Tensor scatter(const Tensors& inputs, int root, const Group& group);

// Output i is what rank i has at inputs[rank()]. `inputs`: size() tensors of any shapes and one dtype. `output_sizes`:
// the shape of what comes from each rank; empty: as the inputs.
Tensors all_to_all(const Tensors& inputs, const Group& group, std::vector<std::vector<std::int64_t>> output_sizes = {});

// The same on one tensor, split along dimension 0: input_splits[i] rows go to rank i, output_splits[i] rows come from
// it. Empty: even splits, which dimension 0 must allow.
at::Tensor all_to_all_single(const at::Tensor& input, const Group& group, std::vector<std::int64_t> output_splits = {},
                             std::vector<std::int64_t> input_splits = {});

// A pair: `tensor` goes to rank `destination`, whose recv() with the same tag returns it. send() returns a zero (a
// 0-dimensional tensor): add it to the loss, so that backward comes by and receives the gradient. Does not wait for the
// receiver.
at::Tensor send(const at::Tensor& tensor, int destination, const Group& group, int tag = 0);
// `like` gives shape, dtype and device of what comes.
at::Tensor recv(const at::Tensor& like, int source, const Group& group, int tag = 0);

}  // namespace gradwire::functional
