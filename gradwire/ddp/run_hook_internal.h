// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Calls a communication hook and looks at what it returned: for DDP, and for hooks that wrap another.
#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/grad_bucket.h"

namespace gradwire::internal {

// hook.run(bucket). Throws what the hook throws; InvalidArgument, with the hook's name, for a null future.
Future start_hook(CommHook& hook, GradBucket& bucket);

// Runs the hook to its end and returns its tensor. Throws also the error that its future holds, and InvalidArgument for
// a future of anything but one tensor (see tensor_of()).
at::Tensor run_hook(CommHook& hook, GradBucket& bucket);

}  // namespace gradwire::internal
