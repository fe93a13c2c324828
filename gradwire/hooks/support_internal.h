// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What several hooks need: flat tensors in another dtype, a hook out of its body.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// destination = source in destination's dtype, rounded to nearest even. Both contiguous, on one device, of one length.
void cast_into(const at::Tensor& source, const at::Tensor& destination);

// `source` in `dtype`: new memory, or `source` itself where it has that dtype.
at::Tensor cast_to(const at::Tensor& source, at::ScalarType dtype);

// The average of `parts` of buckets, of one dtype and device, in their place, by one all-reduce; nothing for none.
void average_together(ProcessGroup& group, int divisor, const std::vector<at::Tensor>& parts);

// Throws the error of a future that has one: for callbacks, which see completed futures alone.
void rethrow_error(c10::ivalue::Future& done);

// The body of a hook over `group`, or over bucket.group() where that is null.
using HookBody = Future (*)(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// A hook that keeps no state and makes one collective, which it does not wait for.
std::shared_ptr<CommHook> make_group_hook(std::string name, std::shared_ptr<ProcessGroup> group, HookBody body);

}  // namespace gradwire::internal
