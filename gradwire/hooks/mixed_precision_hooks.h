// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce in another type than the gradients'.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The buffer is cast to `dtype`, summed over `group` (null: bucket.group()), divided by bucket.divisor() there, and
// cast back into the buffer: PyTorch's mixed precision, which divides after the sum. With float32 for half gradients
// the sum neither overflows nor rounds before it is divided. With half for float32 gradients values beyond 65504 in the
// sum are infinite; fp16_compress_hook() divides first. Buckets of `dtype` are summed where they lie; buckets that are
// not of a floating type go through allreduce_hook().
//
// Bytes a rank sends for n elements: what an all-reduce of n elements of `dtype` sends. `dtype` is float16, bfloat16,
// float32 or float64; make throws InvalidArgument otherwise.
Future reduce_in_dtype_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, at::ScalarType dtype);
std::shared_ptr<CommHook> make_reduce_in_dtype_hook(at::ScalarType dtype,
                                                    std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
