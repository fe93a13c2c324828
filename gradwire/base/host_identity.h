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

// The parts of host_identity() without GRADWIRE_HOST: what the running kernel calls itself, and the number of this
// process's network namespace. Empty where /proc does not say. Thread-safe; each reads a file.
std::string boot_id();
std::string network_namespace();

}  // namespace gradwire
