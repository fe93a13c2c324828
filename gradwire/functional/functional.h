// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd differentiates. Each function takes tensors and returns new tensors. The gradients of a
// function are those of the sum of all ranks' losses.
//
// What holds for all functions:
//  - Agreement: every rank of `group` calls the same functions in the same order. The gradients travel through
//    collectives too, so when any rank needs a gradient, every rank must run backward through its outputs. The ranks
//    agree at the call (in an all-reduce of two integers) whether any rank needs a gradient; the outputs of all ranks
//    require a gradient then. A rank that calls in no-grad mode while another rank needs a gradient gets an
//    InvalidArgument, and so do all other ranks.
//  - Inputs are dense, real or complex, with any strides. They are not changed. Outputs are new and contiguous.
//  - Gradients of SUM, AVG and premultiplied sums follow from linearity. MIN and MAX give the gradient to the ranks
//    that hold the extreme value; ranks that tie share the gradient evenly, as in torch::amax; NaN counts as extreme.
//    PRODUCT multiplies with the values of the other ranks, so zeros are right; backward gathers the inputs, which
//    takes N times their memory. Complex gradients are conjugate, as torch's are. Other operations have no gradient;
//    they throw InvalidArgument when a gradient is needed.
//  - A backward pass consists of the same functions, so it can be differentiated again (all ranks pass the same
//    `create_graph`). send and recv can be differentiated once only.
//  - Errors are those of the group's calls. The function throws them, or backward() does. A null group, a tensor that
//    is undefined or sparse, a rank out of range, and lists of the wrong length throw InvalidArgument before any
//    communication.
//  - Threads: as for the group. The autograd graph of the outputs shares ownership of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/reduce_op.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::functional {

using Group = std::shared_ptr<ProcessGroup>;  // never null

// Returns the tensor of rank `root`, on every rank. On the other ranks `tensor` gives shape and dtype. Gradient: the
// sum of all ranks' gradients on the root, zeros on the other ranks.
at::Tensor broadcast(const at::Tensor& tensor, int root, const Group& group);

// Returns the reduction of all ranks' tensors, which have one shape and dtype. Over gradwire's own backends the result
// has the same bits on every rank.
at::Tensor all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum());

// Returns the reduction of all ranks' tensors on rank `root`, and zeros of the same shape on the other ranks. The
// gradient comes from the root's output alone.
at::Tensor reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op = ReduceOp::sum());

// Returns the reduction of inputs[rank()] of all ranks. `inputs` holds size() tensors of one shape and dtype.
at::Tensor reduce_scatter(const Tensors& inputs, const Group& group, ReduceOp op = ReduceOp::sum());

// Returns the tensors of all ranks, in rank order. Gradient: the sum, over all ranks, of the gradient of the output
// that holds this rank's tensor.
Tensors all_gather(const at::Tensor& tensor, const Group& group);

// Returns the tensors of all ranks, in rank order, on rank `root`, and zeros of the same shapes on the other ranks. The
// gradient comes from the root's outputs alone.
Tensors gather(const at::Tensor& tensor, int root, const Group& group);

// Returns inputs[rank()] of rank `root`. `inputs` holds size() tensors of one shape and dtype on every rank. On ranks
// other than `root`, `inputs` gives only shape and dtype, and the gradients of `inputs` are zeros.
at::Tensor scatter(const Tensors& inputs, int root, const Group& group);

// Returns size() tensors: output i is inputs[rank()] of rank i. `inputs` holds size() tensors of one dtype and any
// shapes. `output_sizes` holds the shape of each output, so size() shapes. With empty `output_sizes` the outputs have
// the shapes of the inputs.
Tensors all_to_all(const Tensors& inputs, const Group& group, std::vector<std::vector<std::int64_t>> output_sizes = {});

// Does all_to_all() on one tensor, whose rows (dimension 0) are split into size() parts: input_splits[i] rows go to
// rank i, and output_splits[i] rows come from rank i. The input splits add up to the number of rows. With empty splits
// all parts have the same number of rows, so the number of rows must be a multiple of size(). Returns the received rows
// in rank order. Throws InvalidArgument, before any communication, for splits that break these rules and for a
// 0-dimensional `input`.
at::Tensor all_to_all_single(const at::Tensor& input, const Group& group, std::vector<std::int64_t> output_splits = {},
                             std::vector<std::int64_t> input_splits = {});

// Sends a copy of `tensor` to rank `destination`, another rank, whose recv() with the same tag returns the tensor. Does
// not wait for the receiver. Returns a zero (a 0-dimensional tensor): add the zero to the loss, so that backward
// receives the gradient from the other rank. Only the two ranks of the message take part. Throws InvalidArgument for
// this rank itself. Backward throws UnsupportedError with create_graph, and the error of the message where it was not
// sent. Without a backward only a line of the log tells of that error (GRADWIRE_LOG=warn); so does one where a gradient
// was not sent.
at::Tensor send(const at::Tensor& tensor, int destination, const Group& group, int tag = 0);
// Waits for the tensor that rank `source` sent with the same tag, and returns the tensor. `like` gives shape, dtype and
// device; its values do not matter. The output requires a gradient when the sender's tensor does; backward then sends
// the gradient to `source`. Throws InvalidArgument for this rank itself, and in no-grad mode when the sender needs a
// gradient. Backward throws UnsupportedError with create_graph.
at::Tensor recv(const at::Tensor& like, int source, const Group& group, int tag = 0);

}  // namespace gradwire::functional
