// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several buffers in one pass over memory.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::kernels {

// Whether stores bypass the cache. `streamed` pays where the destinations are other memory than the sources, are too
// large for the cache and are not read again soon (docs/decisions/0003-streamed-stores.md holds the measurement). It is
// a wish: where a destination is a source, or the destinations do not share one alignment, stores are cached. Streamed
// stores are fenced before reduce() returns, so handing the result to another thread or process needs nothing beyond
// what cached ones need.
enum class Store { cached, streamed };

// For each i < count: destination[d][i] = op(source[0][i], source[1][i], ...) for every d.
//
// Combines in the order of `sources` ((s0 op s1) op s2 ...), f16 and bf16 in f32 with one rounding (to nearest even) at
// the end. premul_sum rounds its factor to the type that is computed with and multiplies every source by it before
// adding; nothing is fused. avg divides by sources.size(). With one source avg and premul_sum still apply. Complex
// products are (ac - bd, ad + bc). Of a zero and a negative zero, min and max take the earlier source's.
//
// The bits do not depend on the kernel, on alignment or on `store`, but for NaN: a result that is NaN is so everywhere,
// its sign and payload are unspecified. It is quiet where arithmetic or rounding made it; min, max and the sum of one
// source hand on the NaN they met.
//
// `sources` (1 to 64) and `destinations` (1 to 64) point to `count` elements of `dtype`, of any alignment. A
// destination may be the same buffer as a source (same address); otherwise buffers must not overlap. The pair (op,
// dtype) must be defined (require_defined() in reduce_op.h refuses the others). The floating-point environment is taken
// to be the default one (nearest even, denormals kept). Noexcept, thread-safe, allocates nothing after the first call.
//
// The first call chooses the kernels (dispatch.h). Call selected() before it to be told of a wrong GRADWIRE_KERNELS;
// reduce() cannot throw, and takes the best kernels then.
void reduce(DType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, Store store = Store::cached) noexcept;

}  // namespace gradwire::kernels
