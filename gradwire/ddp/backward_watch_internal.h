// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Questions about the running backward pass: which gradients it brings, and whether it ended with an exception. All
// functions must be called inside a backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <exception>
#include <functional>
#include <span>

namespace gradwire::internal {

// The number of the pass that runs on this thread. Each pass has another number.
int current_backward_pass();

// Calls `on_error` with the exception when the running pass ends with an exception, on the thread that found the
// exception. Never calls `on_error` otherwise. libtorch itself runs no callback of a pass that ends so: without this
// function the other ranks would wait for the missing buckets until their deadline. Another device's thread may have
// ended the pass with an exception already. Then returns that exception and does not call `on_error`: a call here would
// come under the caller's locks. Returns null otherwise.
std::exception_ptr watch_backward_pass(std::function<void(std::exception_ptr)> on_error);

// Calls `on_end` when the running pass has ended, well or with an exception, after its callbacks. Does nothing when
// another device's thread has ended the pass already.
void call_after_backward_pass(std::function<void()> on_end);

// Whether the running pass reaches `accumulator`, a parameter's. The answer is known from the start of the pass: a pass
// goes through the whole graph of its loss. False for null, for a node with which the pass begins (a loss that is a
// parameter), and for the nodes of inner passes (re-entrant checkpoints).
bool current_pass_reaches(const torch::autograd::Node* accumulator);

// Whether the running pass computes the gradients of chosen tensors only: torch::autograd::grad(), or backward() with
// `inputs`.
bool current_pass_is_for_chosen_inputs();

// Whether the running pass is for chosen inputs, and `parameters` are not among them: it neither accumulates into their
// .grad nor returns their gradients.
bool current_pass_leaves_out(std::span<const at::Tensor> parameters);

}  // namespace gradwire::internal
