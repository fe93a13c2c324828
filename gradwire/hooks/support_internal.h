// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Helpers of several hooks: casts, averages of parts of a bucket, and hooks made of their bodies.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Casts `source` into `destination`, rounded to nearest even. Both tensors are contiguous, on one device, of one
// length.
void cast_into(const at::Tensor& source, const at::Tensor& destination);

// Returns `source` cast to `dtype` in new memory, or `source` itself when it has that dtype.
at::Tensor cast_to(const at::Tensor& source, at::ScalarType dtype);

// Replaces `parts`, tensors of one dtype and device, by their averages over `group`, with one all-reduce. Does nothing
// when `parts` is empty.
void average_together(ProcessGroup& group, int divisor, const std::vector<at::Tensor>& parts);

// Throws the error of the completed future `done`, if it has one.
void rethrow_error(c10::ivalue::Future& done);

// The body of a hook over `group`, or over bucket.group() when `group` is null.
using HookBody = Future (*)(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// Makes a hook without state. `body` makes one collective and does not wait for it.
std::shared_ptr<CommHook> make_group_hook(std::string name, std::shared_ptr<ProcessGroup> group, HookBody body);

}  // namespace gradwire::internal
