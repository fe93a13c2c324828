// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Compressors as hooks. A compressor is a codec, a memory and an exchange (gradwire/compress/compressor.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gradwire/compress/compressor.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

struct CompressedHookOptions {
  // True: gradients with fewer than two dimensions (biases, norms) are not compressed. One all-reduce for each bucket
  // averages them.
  bool plain_vectors = false;
};

// Returns a hook that averages buckets with `compressor`, which the hook owns. The compressor and the options must be
// the same on all ranks. `group`: null for bucket.group(). The group must have all_gather, and also all_to_all when the
// exchange is "all_reduce". The hook may run for several buckets at once. Throws InvalidArgument for a null compressor.
//
// Dtypes. The codec sees float32. float64, float16 and bfloat16 buckets are cast to float32 and back, rounded to
// nearest even. Buckets of other dtypes go through allreduce_hook(). A bucket on a device is encoded and decoded there.
//
// Inf and NaN, for example from a loss scale that is too large. An Inf or NaN in the bucket of any rank makes the
// result not finite on all ranks, with the same bits, so all ranks skip the step. The memory's state for that bucket
// stays unchanged, bit for bit. The state of the other buckets has advanced by one step, on all ranks alike, and does
// not go back (that would take a second copy of the state):
//   - Error feedback and momentum count the delivered part of a gradient as applied. So the delivered part of the
//     skipped step is lost; the rest is still sent later.
//   - EF21 continues as if the step had been taken, and loses nothing.
// With plain_vectors, the vectors of a bucket and its other gradients count as two buckets here. Each piece of a long
// bucket (Compressor::piece_values) counts as a bucket, too. The state has the loss scale of the gradients that it came
// from: after a change of the scale the state is too large or too small by that factor, once.
//
// A parameter that no rank used in an iteration: its memory is as before the iteration (CommHook::revert_unused()).
// Until the end of the iteration a rank keeps a copy of its memory of the parameters in GradBucket::absent(); on a
// device the copy is the memory before the step, which is not overwritten. A program that runs the hook without
// gradwire's DDP loses the part that was delivered of such a parameter.
//
// Bytes that a rank sends: Compressor::bytes_sent() of the bucket's elements; exchange.h has the formulas. While one
// piece of a long bucket travels, the next piece is encoded. (Not on the backends shm and threads: there the rank's own
// thread moves the bytes.)
//
// The state to save is the state of the memory, by parameter name, and "iteration", the number of the next iteration.
// The state survives a change of the buckets and of the lanes, and goes to a module whose parameters have other strides
// (channels_last): tensors have the sizes of the parameter and are row-major. A 1-D tensor for a parameter of several
// dimensions, as earlier versions saved it, is taken to lie in the order of the parameter's memory.
std::shared_ptr<CommHook> make_compressed_hook(std::unique_ptr<compress::Compressor> compressor,
                                               const CompressedHookOptions& options = {},
                                               std::shared_ptr<ProcessGroup> group = nullptr);

// The same for the compressor that make_compressor() makes of `description`, for example "int4:block=64,memory=ef21".
// Throws InvalidArgument as make_compressor() does.
std::shared_ptr<CommHook> make_compressed_hook(std::string_view description, const CompressedHookOptions& options = {},
                                               std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
