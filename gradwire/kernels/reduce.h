// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several buffers, in one pass over memory.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::kernels {

// Whether stores bypass the cache. `streamed` is faster when the destinations are not the sources, are too large for
// the cache and are not read again soon (measured in docs/decisions/0003-streamed-stores.md). `streamed` is a hint:
// when a destination is a source, or the destinations differ in alignment, stores are cached. reduce() fences streamed
// stores before it returns, so other threads and processes can read the result as after cached stores.
enum class Store { cached, streamed };

// For each i < count: destination[d][i] = op(source[0][i], source[1][i], ...) for every d.
//
// Combines in the order of `sources` ((s0 op s1) op s2 ...), f16 and bf16 in f32 with one rounding (to nearest even) at
// the end. premul_sum rounds its factor to the type that is computed with and multiplies every source by it before
// adding; nothing is fused. avg divides by sources.size(), integers toward
// zero. With one source avg and premul_sum still apply. Complex
// products are (ac - bd, ad + bc). Of a zero and a negative zero, min and max take the earlier source's.
//
// The bits depend neither on the kernel, nor on alignment, nor on `store`, except for NaN: every kernel gives NaN for
// the same elements, but sign and payload are unspecified. A NaN from arithmetic or rounding is quiet; min, max and the
// sum of one source return the NaN of the source.
//
// `sources` and `destinations`, of each at least one, point to `count` elements of `dtype`, of any alignment. A
// destination may be the same buffer as a source (same address); otherwise buffers must not overlap. The pair (op,
// dtype) must be defined (require_defined() in reduce_op.h refuses the others). The floating-point environment is taken
// to be the default one (nearest even, denormals kept). Noexcept, thread-safe, allocates nothing after the first call.
//
// The first call chooses the kernels (dispatch.h). A wrong GRADWIRE_KERNELS makes selected() throw; reduce() cannot
// throw and uses the best kernels then.
void reduce(DType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, Store store = Store::cached) noexcept;

}  // namespace gradwire::kernels
