// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which network interface a rank uses.
#pragma once

#include <string>

#include "gradwire/store/store.h"

namespace gradwire::ucx {

// The interface that GRADWIRE_INTERFACE names; else loopback where all ranks are on one host (`one_host`); else the one
// through which this host reaches the store's server, where that is known and another host's or a real interface's;
// else the one of the default route; else the first that is up. Throws InvalidArgument when GRADWIRE_INTERFACE names no
// interface of this host that is up and has an address, and where there is no interface at all. Thread-safe; may look a
// name up.
std::string choose_interface(Store& store, bool one_host, Deadline deadline);

}  // namespace gradwire::ucx
