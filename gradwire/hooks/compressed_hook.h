// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Any compressor as a hook: a codec, a memory and an exchange (gradwire/compress/compressor.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gradwire/compress/compressor.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

struct CompressedHookOptions {
  // Gradients of one dimension or none (biases, norms) go uncompressed, in one all-reduce a bucket.
  bool plain_vectors = false;
};

// Averages buckets through `compressor`; must be the same on all ranks. `group`: null for bucket.group(). Needs
// all_gather of the group, and all_to_all where the exchange is "all_reduce". May run for several buckets at once.
//
// Numbers: the codec sees float32. float64, float16 and bfloat16 buckets are cast to it and back, rounding to nearest
// even. Buckets of other types, and those that are not on the CPU, are averaged plainly.
//
// Inf and NaN, as they come of a loss scale that is too large. One in any rank's bucket reaches all ranks: they hold
// the same bits, not finite somewhere, so all skip the step. What the memory keeps for that bucket stays what it was,
// bit for bit. The other buckets of the step have gone one step on, alike on all ranks, and do not go back (that would
// take a second copy of all memory): error feedback and momentum take what they delivered for applied, so of the
// skipped step that much is lost and the rest is still sent; EF21 goes on as if the step had been taken, and loses
// nothing. With plain_vectors a bucket's vectors and its other gradients count as two buckets, and so does each piece
// that a long bucket goes in (Compressor::piece_values). What a memory keeps is in the scale of the gradients it saw: a
// change of scale makes it that factor too large or small, once.
//
// Bytes a rank sends: Compressor::bytes_sent() of the bucket's elements; exchange.h has the formulas.
// A long bucket's pieces overlap: while one is on its way the next is encoded, but on shm and threads, whose bytes move
// by the rank's own hand.
//
// State to save: what the memory keeps, by parameter name, and "iteration", the number of the next one. It outlives
// other buckets and lanes. Throws InvalidArgument for a null compressor.
std::shared_ptr<CommHook> make_compressed_hook(std::unique_ptr<compress::Compressor> compressor,
                                               const CompressedHookOptions& options = {},
                                               std::shared_ptr<ProcessGroup> group = nullptr);

// The compressor that `description` names, as in make_compressor(): "int4:block=64,memory=ef21".
std::shared_ptr<CommHook> make_compressed_hook(std::string_view description, const CompressedHookOptions& options = {},
                                               std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
