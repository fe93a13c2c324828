// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Wrappers that run any hook on a bucket of half precision.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// The wrapper casts the bucket's buffer to float16 (fp16) or bfloat16 (bf16), runs `inner` on the cast buffer, and
// casts the result back into the bucket's own buffer. So make_fp16_compress_wrapper(make_allreduce_hook()) does the
// same as make_fp16_compress_hook().
//
// The inner hook sees bucket.buffer() and bucket.gradients() in the lower precision. bucket.parameters() and
// bucket.layout() are unchanged. Buckets that are neither float32 nor float64 go to `inner` unchanged. float16 turns
// values beyond 65504 into infinities, as in fp16_compress_hook().
//
// A rank sends the bytes that `inner` sends for a bucket of the lower precision. (PowerSGD sends its factors in
// float32, and a compressor sends its encodings, whatever the dtype of the bucket.) The wrapper has the traits (groups,
// parallel_safe, single_collective) and the state of `inner`. When `inner` returns a tensor with another number of
// elements or on another device, the future holds an InvalidArgument. The functions throw InvalidArgument for a null
// hook.
std::shared_ptr<CommHook> make_fp16_compress_wrapper(std::shared_ptr<CommHook> inner);
std::shared_ptr<CommHook> make_bf16_compress_wrapper(std::shared_ptr<CommHook> inner);

}  // namespace gradwire
