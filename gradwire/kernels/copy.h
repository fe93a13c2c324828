// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Copies of what another rank has just written.
#pragma once

#include <cstddef>

#include "gradwire/kernels/reduce.h"

namespace gradwire::kernels {

// Copies `bytes` bytes from `from`, where another rank has written them (or this one), to `to`; the two are the same or
// do not overlap. With 0 bytes the addresses may be null. Any alignment. `result_bytes` says how many bytes this rank
// gets in all, in this copy and others that go with it, and decides how (docs/decisions/0039):
//   - Few: four pages go side by side. A processor fetches ahead within a page only, so lines that lie in another
//     processor's cache come faster so.
//   - More than fit into the cache of a core: as copy_bytes() does.
//   - Many more, and nobody reads all of them from a cache soon: the same as few, with stores that bypass the cache.
//     Other threads and processes can read the result as after cached stores. Not with `allowed` cached, for results
//     that lie where this rank has just read.
//
// Noexcept, thread-safe, allocates nothing after the first call.
void copy_from_peer(void* to, const void* from, std::size_t bytes, std::size_t result_bytes,
                    Store allowed = Store::streamed) noexcept;

}  // namespace gradwire::kernels
