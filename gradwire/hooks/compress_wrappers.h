// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Half precision around any hook.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// The bucket's buffer is cast to half (bfloat16), `inner` runs on that, and its result is cast back into the bucket's
// own buffer. So make_fp16_compress_wrapper(make_allreduce_hook()) does what make_fp16_compress_hook() does, and
// PowerSGD inside sends half of what it sends alone.
//
// What the inner hook sees: bucket.buffer() and bucket.gradients() in the narrow type; bucket.parameters() and
// bucket.layout() as ever. Buckets of other types than float32 and float64 go to `inner` as they are. Values beyond
// 65504 are infinite in half, as in fp16_compress_hook().
//
// Bytes a rank sends: what `inner` sends for elements of 2 bytes. Traits (groups, parallel_safe, single_collective) and
// memory are the inner hook's. Throws InvalidArgument for null.
std::shared_ptr<CommHook> make_fp16_compress_wrapper(std::shared_ptr<CommHook> inner);
std::shared_ptr<CommHook> make_bf16_compress_wrapper(std::shared_ptr<CommHook> inner);

}  // namespace gradwire
