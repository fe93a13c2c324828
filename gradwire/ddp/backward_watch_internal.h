// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Learns of a backward pass that ends with an exception.
#pragma once

#include <exception>
#include <functional>

namespace gradwire::internal {

// To be called inside a backward pass: number of the pass that runs on this thread, different for each.
int current_backward_pass();

// To be called inside a backward pass. Calls `on_error` when that pass ends with an exception, with it, on the thread
// that found it; never otherwise. libtorch tells nobody of such an end: no callback of the pass runs then, and without
// this the other ranks would wait for the missing buckets until their deadline.
void watch_backward_pass(std::function<void(std::exception_ptr)> on_error);

}  // namespace gradwire::internal
