// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What can be known of the backward pass that runs: which gradients it brings, and that it ended with an exception.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <exception>
#include <functional>

namespace gradwire::internal {

// To be called inside a backward pass: number of the pass that runs on this thread, different for each.
int current_backward_pass();

// To be called inside a backward pass. Calls `on_error` when that pass ends with an exception, with it, on the thread
// that found it; never otherwise. libtorch tells nobody of such an end: no callback of the pass runs then, and without
// this the other ranks would wait for the missing buckets until their deadline.
void watch_backward_pass(std::function<void(std::exception_ptr)> on_error);

// To be called inside a backward pass. Whether that pass runs `accumulator`, a parameter's node: known from the start
// of the pass on, for the pass goes through the whole graph of its loss. False for a node that the pass itself begins
// with (a loss that is a parameter), and for those of passes inside of it (re-entrant checkpoints).
bool current_pass_reaches(const torch::autograd::Node& accumulator);

// To be called inside a backward pass. Whether it is one for chosen tensors only: torch::autograd::grad(), or
// backward() with `inputs`.
bool current_pass_is_for_chosen_inputs();

}  // namespace gradwire::internal
