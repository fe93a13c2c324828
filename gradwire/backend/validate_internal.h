// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller passes to a Channel, shared by all backends: `validate::all_reduce(*this, data, count, dtype,
// op)` is the first line of an all_reduce().
//
// Every function returns when the arguments are fine and otherwise throws InvalidArgument "<operation> on rank <r> of
// <n>: <what is wrong>". Nothing is communicated, nothing is read or written through the pointers. Thread-safe. Checked
// are
//   - the root or peer: in [0, size)
//   - the dtype and the op: enumerators, and a defined pair (ReduceOp's table)
//   - counts: count * size_of(dtype), and its sum over the ranks where one call moves that much, fit a signed 64-bit
//   number
//   - pointers: not null where there is something to move, as many as there are ranks
//   - overlap: buffers of one call lie apart, or are the same where the interface allows it
// Not checked: that the memory is there and as large as `count` says.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/backend/backend.h"

namespace gradwire::validate {

// Messages larger than this cannot be described; also the bound on the sum over all ranks of one call.
inline constexpr std::size_t kMaxBytes = static_cast<std::size_t>(-1) / 2;

void broadcast(const Channel& channel, const void* data, std::size_t count, DType dtype, int root);
void all_reduce(const Channel& channel, const void* data, std::size_t count, DType dtype, ReduceOp op);
// `output` is looked at on the root only.
void reduce(const Channel& channel, const void* input, const void* output, std::size_t count, DType dtype, ReduceOp op,
            int root);
// The input may be outputs[rank()].
void all_gather(const Channel& channel, const void* input, std::span<void* const> outputs, std::size_t count,
                DType dtype);
// The input may be outputs[root] on the root; elsewhere `outputs` must be empty.
void gather(const Channel& channel, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
            int root);
// The output may be inputs[root] on the root; elsewhere `inputs` must be empty.
void scatter(const Channel& channel, std::span<const void* const> inputs, const void* output, std::size_t count,
             DType dtype, int root);
// The output may be one of the inputs.
void reduce_scatter(const Channel& channel, std::span<const void* const> inputs, const void* output, std::size_t count,
                    DType dtype, ReduceOp op);
// inputs[rank()] and outputs[rank()] must have the same count; a difference with another rank is a MismatchError of the
// call itself.
void all_to_all(const Channel& channel, std::span<const ConstSlice> inputs, std::span<const Slice> outputs,
                DType dtype);
void isend(const Channel& channel, const void* data, std::size_t bytes, int destination, std::uint32_t tag);
// `source` may be kAnySource.
void irecv(const Channel& channel, const void* data, std::size_t bytes, int source, std::uint32_t tag);
void allocate(const Channel& channel, std::size_t bytes);

}  // namespace gradwire::validate
