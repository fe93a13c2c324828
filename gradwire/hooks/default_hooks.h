// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hooks that average by one all-reduce: in full precision, in float16 and in bfloat16.
//
// For a bucket of n float32 elements a rank sends the bytes of an all-reduce of n elements of 4, 2 and 2 bytes.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The bodies of the hooks. Each divides the gradients by bucket.divisor(), sums them over `group` (null:
// bucket.group()) and writes the averages into bucket.buffer(). The future holds bucket.buffer(), or the error of the
// collective.

// Divides the buffer, then sums it, in the buffer's own dtype.
Future allreduce_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// Casts the buffer to float16, divides and sums it in float16, and casts the result back. Rounds to 11 significant
// bits. Values beyond 65504 become infinite: as in PyTorch, the cast comes before the division. Buckets that are
// neither float32 nor float64 go through allreduce_hook().
Future fp16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The same in bfloat16, which has the range of float32 and 8 significant bits. Works on every backend of gradwire.
Future bf16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The same as hooks to register. `group` as above. When `group` is DDP's own group, the collectives go to the lane's
// duplicate. Another group is named in HookTraits::groups, so DDP makes duplicates of it.
std::shared_ptr<CommHook> make_allreduce_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_fp16_compress_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_bf16_compress_hook(std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
