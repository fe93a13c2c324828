// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on any hosts, over UCX: TCP, and RoCE or InfiniBand where the user says so.
//
// UCX itself is used by a library of its own, libgradwire_ucx.so, which lies beside libgradwire_core.so and is loaded
// when the first backend is made: programs start on machines without UCX (docs/decisions/0017).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gradwire/backend/registry.h"

namespace gradwire {

// One rank of a group whose ranks are processes that reach each other over a network; called from the registry. Ranks
// may be threads of one process too. The environment: GRADWIRE_INTERFACE, GRADWIRE_SECRET, GRADWIRE_SECRET_FILE,
// GRADWIRE_HEARTBEAT_MS (docs/backends.md), and UCX's own UCX_* variables.
//
// Throws UnsupportedError when this gradwire was built without UCX, or UCX is not installed here; InvalidArgument for
// an interface that does not exist, or a secret that cannot be read; MismatchError when the ranks hold different
// secrets; PeerError that names a rank that died, failed or cannot be reached; TimeoutError that names the ranks that
// did not come; ResourceError; StoreError.
std::unique_ptr<Backend> make_ucx_backend(const BackendOptions& options);

// Returns whether this gradwire was built with UCX. The machine may lack UCX all the same.
bool ucx_is_built() noexcept;

// Returns why make_ucx_backend() would throw UnsupportedError in this process; nothing where UCX can be used. Loads
// UCX. Thread-safe.
std::optional<std::string> why_no_ucx();

}  // namespace gradwire
