// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several buffers in one pass over memory.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::kernels {

// Whether stores bypass the cache. `streamed` pays when the destinations are larger than the last-level cache and are
// not read again soon; docs/decisions/ holds the measurement.
enum class Store { cached, streamed };

// For each i < count: destination[d][i] = op(source[0][i], source[1][i], ...) for every d.
//
// Combines in the order of `sources` ((s0 op s1) op s2 ...), f16 and bf16 in f32 with one rounding (to nearest even) at
// the end; avg divides by sources.size(). With one source avg, premul_sum still apply. The bits do not depend on the
// kernel, on alignment or on `store`.
//
// `sources` (1 to 64) and `destinations` (1 to 64) point to `count` elements of `dtype`, of any alignment. A
// destination may be the same buffer as a source (same address); otherwise buffers must not overlap. The pair (op,
// dtype) must be defined (see ReduceOp). Noexcept, thread-safe, allocates nothing.
void reduce(DType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, Store store = Store::cached) noexcept;

}  // namespace gradwire::kernels
