// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which processes are on one host.
#pragma once

#include <string>

namespace gradwire {

// Processes with the same text run on one kernel and see one network; never the name of the host. GRADWIRE_HOST, any
// name, replaces both: for machines where that is wrong, and for tests. Throws ResourceError where neither can be told.
// Thread-safe; reads files.
std::string host_identity();

}  // namespace gradwire
