// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: for unit tests, debuggers and sanitizers. Every buffer is in place for everybody.
#pragma once

#include <memory>

#include "gradwire/backend/registry.h"

namespace gradwire {

// See make_backend(). All ranks must be threads of one process; a rank in another process gets InvalidArgument.
std::unique_ptr<Backend> make_threads_backend(const BackendOptions& options);

}  // namespace gradwire
