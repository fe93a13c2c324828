// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hooks that average and nothing else: in full precision, in half, in bfloat16.
//
// Bytes a rank sends for a bucket of n float32 elements: what an all-reduce of n elements of 4, 2 and 2 bytes sends.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Each of these is a hook's body: divides by bucket.divisor(), sums over `group` (null: bucket.group()), and holds
// bucket.buffer() with the averages. Errors of the collective come out of the future.

// buffer / N, then the sum.
Future allreduce_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The buffer cast to half, divided by N there, summed, and cast back: rounds to 11 significant bits, values beyond
// 65504 become infinite (as in PyTorch, the cast comes before the division). Buckets of other types than float32 and
// float64 go as they are.
Future fp16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The same in bfloat16: the range of float32, 8 significant bits. Works on every backend of gradwire.
Future bf16_compress_hook(const std::shared_ptr<ProcessGroup>& group, GradBucket& bucket);

// The same as hooks to register. `group`: as above; DDP's own is led to the lane's duplicate, another one is named for
// duplication.
std::shared_ptr<CommHook> make_allreduce_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_fp16_compress_hook(std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_bf16_compress_hook(std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
