// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The collectives over shared memory, one function each; arguments and results are those of Channel, already validated.
// Each throws what Call::enter() throws. Their sources open with the algorithms.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/backend/shared/call_internal.h"

namespace gradwire::shared {

void broadcast(Call& call, void* data, std::size_t count, DType dtype, int root);
void all_reduce(Call& call, void* data, std::size_t count, DType dtype, ReduceOp op);
void reduce(Call& call, const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root);
void all_gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype);
void gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root);
void scatter(Call& call, std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root);
void reduce_scatter(Call& call, std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                    ReduceOp op);
void all_to_all(Call& call, std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype);

}  // namespace gradwire::shared
