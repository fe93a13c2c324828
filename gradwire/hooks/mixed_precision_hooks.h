// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-reduce in another dtype than the dtype of the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Casts the buffer to `dtype`, sums it over `group` (null: bucket.group()), divides it by bucket.divisor() in `dtype`,
// and casts the result back into the buffer. This is PyTorch's mixed precision, which divides after the sum. With
// float32 for half gradients, the sum neither overflows nor is rounded to half before the division. With float16 for
// float32 gradients, values of the sum beyond 65504 are infinite; fp16_compress_hook() divides first. Buckets of
// `dtype` are summed in place. Buckets that are not of a floating-point type go through allreduce_hook(). The future
// holds bucket.buffer(), or the error of the collective.
//
// For n elements a rank sends the bytes of an all-reduce of n elements of `dtype`. `dtype` is float16, bfloat16,
// float32 or float64; make_reduce_in_dtype_hook() throws InvalidArgument for any other.
Future reduce_in_dtype_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket, at::ScalarType dtype);
std::shared_ptr<CommHook> make_reduce_in_dtype_hook(at::ScalarType dtype,
                                                    std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
