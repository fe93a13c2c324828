// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of one host, over shared memory. Memory has no name: nothing is left behind after any end, kill -9
// included.
#pragma once

#include <memory>

#include "gradwire/backend/registry.h"

namespace gradwire {

// See make_backend(). Ranks find each other through the store and meet on an abstract Unix socket of rank 0, over which
// memory and pidfds pass. Throws InvalidArgument when another rank runs on another host or in another network
// namespace, ResourceError when memory is refused.
//
// GRADWIRE_SHM_FOLDER names a folder in which memory is kept as unlinked files, instead of memfds; it is also what a
// kernel without memfd gets (TMPDIR).
std::unique_ptr<Backend> make_shm_backend(const BackendOptions& options);

}  // namespace gradwire
